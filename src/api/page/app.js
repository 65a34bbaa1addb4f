// A chat with the served model: keeps the messages, streams the answers, shows their figures.

const element = (id) => document.getElementById(id);
let messages = []; // of this chat; an answer that is still written belongs to the one it was asked in
let running = null; // the AbortController of the answer being written

function headers() {
  const key = element("key").value;
  const all = { "Content-Type": "application/json" };
  if (key) all.Authorization = `Bearer ${key}`;
  return all;
}

function show(role, text) {
  const box = document.createElement("div");
  box.className = `message ${role}`;
  box.textContent = text;
  element("chat").append(box);
  box.scrollIntoView({ block: "end" });
  return box;
}

// Shows a growing text in the box once a frame at most, so that a fast model leaves time for the reader's clicks.
function writer(box) {
  let latest = "";
  let waiting = false;
  const paint = () => {
    waiting = false;
    box.textContent = latest;
    box.scrollIntoView({ block: "end" });
  };
  return (text) => {
    latest = text;
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(paint);
  };
}

// The request's body: fields that are left empty are left out.
function body() {
  const system = element("system").value.trim();
  const request = {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens"]) {
    const field = element(name);
    if (field.value !== "") request[name] = Number(field.value);
  }
  // A seed may have more digits than a Number holds.
  const text = JSON.stringify(request);
  const seed = element("seed").value.trim();
  return /^-?\d+$/.test(seed) ? `${text.slice(0, -1)},"seed":${seed}}` : text;
}

// Yields the parsed events of a server-sent stream.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    waiting += value;
    const parts = waiting.split("\n\n");
    waiting = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function failure(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${response.status} ${text}`;
  }
}

async function answer(question) {
  const chat = messages;
  const abort = new AbortController();
  running = abort;
  element("send").textContent = "Stop";
  chat.push({ role: "user", content: question });
  const asked = show("user", question);
  const box = show("assistant", "");
  const write = writer(box);
  const began = performance.now();
  let first = 0;
  let text = "";
  let thoughts = null;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers(), body: body(), signal: abort.signal,
    });
    if (!response.ok) throw new Error(await failure(response));
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      const piece = event.choices[0]?.delta?.content ?? "";
      const thought = event.choices[0]?.delta?.reasoning ?? "";
      if ((piece || thought) && !first) first = performance.now();
      if (thought) {
        if (!thoughts) box.before((thoughts = show("reasoning", "")));
        thoughts.textContent += thought;
      }
      text += piece;
      write(text);
      if (event.usage) figures(event.usage, first - began, performance.now() - first, response);
    }
  } catch (error) {
    if (error.name !== "AbortError") show("error", error.message);
  }
  if (text) {
    box.textContent = text;
    chat.push({ role: "assistant", content: text });
  } else {
    // Unanswered, the question must not stand before the next one: templates want turns.
    chat.pop();
    asked.remove();
    thoughts?.remove();
    box.remove();
    if (chat === messages) element("input").value ||= question;
  }
  if (running !== abort) return;
  running = null;
  element("send").textContent = "Send";
}

function figures(usage, wait, time, response) {
  const seed = response.headers.get("X-Quire-Seed");
  const rate = time > 0 ? (usage.completion_tokens - 1) / (time / 1000) : 0;
  const lines = [
    `${usage.prompt_tokens} prompt tokens, ${usage.prompt_tokens_details.cached_tokens} cached`,
    `${usage.completion_tokens} tokens, ${rate.toFixed(1)} a second`,
    `first after ${Math.round(wait)} ms`,
  ];
  if (seed) lines.push(`seed ${seed}`);
  element("figures").textContent = lines.join("\n");
}

async function showModel() {
  const response = await fetch("/v1/models", { headers: headers() });
  if (!response.ok) return;
  const { data } = await response.json();
  element("model").textContent = `${data[0].id}, ${data[0].max_model_len} tokens`;
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) {
    running.abort();
    return;
  }
  const text = element("input").value.trim();
  if (!text) return;
  element("input").value = "";
  answer(text);
});
element("input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  element("form").requestSubmit();
});
element("clear").addEventListener("click", () => {
  running?.abort();
  running = null;
  element("send").textContent = "Send";
  messages = [];
  element("chat").replaceChildren();
  element("figures").textContent = "";
});
element("key").addEventListener("change", showModel);
showModel();
