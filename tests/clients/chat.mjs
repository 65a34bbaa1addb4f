// What the official client for Node makes of a server: prints one JSON object. node chat.mjs BASE_URL
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const request = {
  model: "m",
  messages: [{ role: "user", content: "Say hello." }],
  temperature: 0,
  max_tokens: 16,
};
const result = {};

result.models = (await client.models.list()).data.map((model) => model.id);

const whole = await client.chat.completions.create(request);
result.content = whole.choices[0].message.content;

result.streamed = "";
const stream = await client.chat.completions.create({
  ...request,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  result.streamed += chunk.choices[0]?.delta?.content ?? "";
  if (chunk.usage) result.usage = chunk.usage.completion_tokens;
}

const schema = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const parsed = await client.chat.completions.parse({
  ...request,
  max_tokens: 64,
  response_format: { type: "json_schema", json_schema: { name: "place", strict: true, schema } },
});
result.city = JSON.parse(parsed.choices[0].message.content).city;

const forced = await client.chat.completions.create({
  ...request,
  max_tokens: 128,
  tools: [{ type: "function", function: { name: "go", parameters: schema } }],
  tool_choice: "required",
});
const call = forced.choices[0].message.tool_calls[0];
result.call = [call.function.name, JSON.parse(call.function.arguments).city];

const response = await client.responses.create({
  model: "m",
  input: "Say hello.",
  temperature: 0,
  max_output_tokens: 16,
});
result.response = response.output_text;

result.events = [];
let text = "";
for await (const event of await client.responses.create({
  model: "m",
  input: "Say hello.",
  temperature: 0,
  max_output_tokens: 16,
  stream: true,
})) {
  result.events.push(event.type);
  if (event.type === "response.output_text.delta") text += event.delta;
}
result.response_streamed = text;

try {
  await client.chat.completions.create({ ...request, temperature: -1 });
} catch (error) {
  result.error = [error.status, error.param];
}
console.log(JSON.stringify(result));
