"""What is tried with every real engine, through kvsteerd and, where it can be, beside the engine itself."""

import concurrent.futures
import json
import random
import time
import uuid

import httpx

from rig import metric, wait_for

# Values that differ between two runs of the same call.
VOLATILE = {"id", "created", "created_at", "completed_at", "system_fingerprint", "timings", "item_id", "response_id",
            "call_id", "cache_read_input_tokens", "prompt_tokens_details", "input_tokens_details", "request_id", "service_tier", "kv_transfer_params", "obfuscation"}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a place",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 8}}, "required": ["answer"]}


def chat(**more):
    return {"messages": [{"role": "system", "content": "Answer in one line."},
                         {"role": "user", "content": "Name three rivers of Europe and the seas they end in."}],
            "max_tokens": 12, "temperature": 0, **more}


# name: (path, body). Each engine's script names those that it serves.
CALLS = {
    "chat": ("/v1/chat/completions", chat()),
    "chat, stream": ("/v1/chat/completions", chat(stream=True)),
    "chat, stream, usage": ("/v1/chat/completions", chat(stream=True, stream_options={"include_usage": True})),
    "chat, max_completion_tokens": ("/v1/chat/completions", {**chat(), "max_tokens": None, "max_completion_tokens": 7}),
    "chat, logprobs": ("/v1/chat/completions", chat(logprobs=True, top_logprobs=3)),
    "chat, stop": ("/v1/chat/completions", chat(stop=["e", "\n"])),
    "chat, n = 2": ("/v1/chat/completions", chat(n=2, temperature=0.7, seed=7)),
    "chat, seed": ("/v1/chat/completions", chat(temperature=0.9, seed=11)),
    "chat, tools auto": ("/v1/chat/completions", chat(tools=TOOLS)),
    "chat, a named tool": ("/v1/chat/completions", chat(tools=TOOLS, max_tokens=40,
                                                        tool_choice={"type": "function", "function": {"name": "get_weather"}})),
    "chat, tools, stream": ("/v1/chat/completions", chat(tools=TOOLS, stream=True)),
    "chat, json_schema": ("/v1/chat/completions", chat(max_tokens=40, response_format={
        "type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}})),
    "chat, parts": ("/v1/chat/completions", {**chat(), "messages": [{"role": "user", "content": [
        {"type": "text", "text": "Name a river."}, {"type": "text", "text": " And a sea."}]}]}),
    "completion": ("/v1/completions", {"prompt": "The longest river is", "max_tokens": 10, "temperature": 0}),
    "completion, stream": ("/v1/completions", {"prompt": "The longest river is", "max_tokens": 10, "temperature": 0, "stream": True}),
    "completion, list of prompts": ("/v1/completions", {"prompt": ["One two", "Three four"], "max_tokens": 6, "temperature": 0}),
    "completion, token ids": ("/v1/completions", {"prompt": [20, 21, 22, 23, 24, 25], "max_tokens": 6, "temperature": 0}),
    "completion, echo": ("/v1/completions", {"prompt": "The longest river is", "max_tokens": 4, "temperature": 0, "echo": True}),
    "completion, suffix of 4,000 words": ("/v1/completions", {"prompt": "river sea " * 700, "max_tokens": 4, "temperature": 0}),
    "responses": ("/v1/responses", {"input": "Name a river.", "max_output_tokens": 16, "temperature": 0}),
    "responses, stream": ("/v1/responses", {"input": "Name a river.", "max_output_tokens": 16, "temperature": 0, "stream": True}),
    "messages": ("/v1/messages", {"max_tokens": 10, "temperature": 0, "system": "Be short.",
                                  "messages": [{"role": "user", "content": "Name a river."}]}),
    "messages, stream": ("/v1/messages", {"max_tokens": 10, "temperature": 0, "stream": True,
                                          "messages": [{"role": "user", "content": "Name a river."}]}),
    "messages, count_tokens": ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Name a river."}]}),
    "tokenize": ("/tokenize", {"prompt": "The longest river is", "content": "The longest river is"}),
    "detokenize": ("/detokenize", {"tokens": [20, 21, 22, 23]}),
    "a bad field": ("/v1/chat/completions", {**chat(), "temperature": "warm"}),
    "no messages": ("/v1/chat/completions", {"max_tokens": 3}),
    "a model nobody has": ("/v1/chat/completions", chat(model="no-such-model")),
    "not JSON": ("/v1/chat/completions", None),
}


def plain(value):
    """The value without what differs from call to call."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in VOLATILE}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def call(url, path, body, model):
    """(status, content type, comparable answer)."""
    content = b"{oops" if body is None else json.dumps({"model": model, **{k: v for k, v in body.items() if v is not None}}).encode()
    with httpx.Client(timeout=300, trust_env=False) as client:
        answer = client.post(url + path, content=content, headers={"Content-Type": "application/json"})
    kind = answer.headers.get("content-type", "").split(";")[0]
    if kind == "text/event-stream":
        seen = []
        for line in answer.text.splitlines():
            if line.startswith("data: {"):
                seen.append(plain(json.loads(line[6:])))
            elif line:
                seen.append(line)
        return answer.status_code, kind, seen
    try:
        return answer.status_code, kind, plain(answer.json())
    except ValueError:
        return answer.status_code, kind, answer.text


def difference(want, got, where=""):
    """The first place where two answers differ, as text."""
    if isinstance(want, dict) and isinstance(got, dict):
        for k in sorted(set(want) | set(got)):
            if want.get(k) != got.get(k):
                return difference(want.get(k), got.get(k), f"{where}.{k}")
    if isinstance(want, (list, tuple)) and isinstance(got, (list, tuple)):
        for i, (w, g) in enumerate(zip(want, got)):
            if w != g:
                return difference(w, g, f"{where}[{i}]")
        return f"{where}: {len(want)} and {len(got)} items"
    return f"{where}: {str(want)[:80]} and {str(got)[:80]}"


def same_calls(names, direct, through, model, pick_text=False):
    """Each call, asked of the engine and of kvsteer. (result, is_right)."""
    differ = []
    for name in names:
        path, body = CALLS[name]
        want = call(direct, path, body, model)
        got = call(through, path, body, model)
        if want != got and (pick_text or want[1] == "text/event-stream"):
            # Engines gather tokens into events as time has it: the text counts, not where it was divided.
            want, got = (want[0], text_of(want[2])), (got[0], text_of(got[2]))
        if want != got:
            differ.append(f"{name}: {difference(want, got)}")
    return f"{len(names) - len(differ)} of {len(names)} the same" + "".join("; " + d for d in differ), not differ


ENDS = {"stop", "length", "tool_calls", "tool_use", "end_turn", "max_tokens", "stop_sequence"}


def text_of(answer):
    """What the model wrote, in order, of an answer or of a list of events."""
    found = []

    def walk(value, key=None):
        if isinstance(value, dict):
            for k, v in value.items():
                walk(v, k)
        elif isinstance(value, list):
            for v in value:
                walk(v, key)
        elif key in ("content", "text", "reasoning_content", "finish_reason", "stop_reason", "arguments", "delta") and isinstance(value, str):
            found.append(value)
    walk(answer)
    return ["".join(t for t in found if t not in ENDS), [t for t in found if t in ENDS]]


def sdk_calls(url, model):
    """The openai and anthropic clients as programs use them. (result, is_right)."""
    import openai
    done = []
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=300)
    text = client.chat.completions.create(model=model, **chat()).choices[0].message.content
    done.append("chat")
    parts = [c.choices[0].delta.content or "" for c in client.chat.completions.create(model=model, **chat(stream=True)) if c.choices]
    done.append("stream")
    same = "".join(parts) == text
    assert [m.id for m in client.models.list()] == [model]
    done.append("models")
    client.completions.create(model=model, prompt="The longest river is", max_tokens=4, temperature=0)
    done.append("completions")
    try:
        client.chat.completions.create(model="no-such-model", **chat())
        done.append("unknown model answered")
    except openai.NotFoundError:
        done.append("404")
    except openai.BadRequestError:
        done.append("400")
    return "openai: " + ", ".join(done), same


def one_turn(client, url, model, messages, headers, more):
    answer = client.post(url + "/v1/chat/completions", headers=headers,
                         json={"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, **more})
    answer.raise_for_status()
    body = answer.json()
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return (answer.headers.get("x-kvsteer-worker"), body["choices"][0]["message"]["content"] or "",
            usage.get("prompt_tokens", 0), details.get("cached_tokens") or 0)


def conversations(url, model, n, turns, at_once, words=120, headers=None, seed=1, more=None):
    """n conversations of so many turns: {moved, follow, prompt, cached, by_worker}."""
    rng = random.Random(seed)
    vocabulary = [f"{a}{b}" for a in ("ri", "se", "mo", "la", "ke") for b in ("ver", "an", "un", "tain", "st")]

    def talk(i):
        r = random.Random(rng.random() + i)
        messages = [{"role": "system", "content": f"You are helper {i}. " + " ".join(r.choice(vocabulary) for _ in range(words))}]
        seen = []
        with httpx.Client(timeout=300, trust_env=False) as client:
            for turn in range(turns):
                messages.append({"role": "user", "content": f"Turn {turn}: " + " ".join(r.choice(vocabulary) for _ in range(words // 3))})
                worker, text, prompt, cached = one_turn(client, url, model, messages, {**(headers(i) if headers else {})}, more or {})
                messages.append({"role": "assistant", "content": text})
                seen.append((worker, prompt, cached))
        return seen

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        all_seen = list(pool.map(talk, range(n)))
    by_worker = {}
    for seen in all_seen:
        for worker, _, _ in seen:
            by_worker[worker] = by_worker.get(worker, 0) + 1
    return {"moved": sum(a[0] != b[0] for seen in all_seen for a, b in zip(seen, seen[1:])),
            "follow": sum(len(seen) - 1 for seen in all_seen),
            "prompt": sum(p for seen in all_seen for _, p, _ in seen),
            "cached": sum(c for seen in all_seen for _, _, c in seen), "by_worker": by_worker}


def affinity(url, model, n, turns, at_once, most_moved=0, **how):
    """(result, is_right): how many follow-up turns left their worker, and what the engines found cached."""
    got = conversations(url, model, n, turns, at_once, **how)
    share = 100 * got["cached"] / max(got["prompt"], 1)
    busy = " ".join(f"{w} {k}" for w, k in sorted(got["by_worker"].items(), key=str))
    return (f"{got['moved']} of {got['follow']} turns moved, {share:.1f} % of the prompt tokens cached ({busy})",
            got["moved"] <= most_moved * got["follow"])


class Stream:
    """A streamed chat: events with their times, and how it ended."""

    def __init__(self, url, model, text, max_tokens=200, path="/v1/chat/completions", **more):
        self.id = f"real-{uuid.uuid4().hex}"
        self.events, self.times, self.error = [], [], None
        self.client = httpx.Client(timeout=300, trust_env=False)
        self.begun = time.monotonic()  # to make the client takes 20 ms
        body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "temperature": 0, "stream": True,
                **more}
        self.answer = self.client.send(self.client.build_request("POST", url + path, json=body, headers={"X-Request-Id": self.id}), stream=True)
        self.head_s = time.monotonic() - self.begun
        self.lines = self.answer.iter_lines()

    def read(self, n=None):
        """Reads n events (None: all). An error event or a broken end is kept in .error."""
        try:
            for line in self.lines:
                if not line.startswith("data:"):
                    continue
                self.times.append(time.monotonic() - self.begun)
                self.events.append(line[5:].strip())
                if '"error"' in line:
                    self.error = line
                if n is not None and len(self.events) >= n:
                    break
        except httpx.HTTPError as e:
            self.error = self.error or repr(e)
        return self

    def is_whole(self):
        return self.error is None and self.answer.status_code == 200 and self.events[-1:] == ["[DONE]"]

    def close(self):
        self.answer.close()
        self.client.close()

    def first_content_s(self):
        """When the first event with content came."""
        for event, at in zip(self.events, self.times):
            if event.startswith("{"):
                choices = json.loads(event).get("choices") or [{}]
                delta = choices[0].get("delta") or choices[0]
                if delta.get("content") or delta.get("text") or delta.get("reasoning_content"):
                    return at
        return None


def abort(url, model, engines, running):
    """A client that leaves a stream after two events: the engines are idle at once. (result, is_right)."""
    s = Stream(url, model, "Count to a thousand.", max_tokens=2000)
    s.read(2)
    s.close()
    begun = time.monotonic()
    wait_for("the engines are idle", lambda: sum(metric(e, running) for e in engines) == 0, 20)
    return f"idle {time.monotonic() - begun:.1f} s after the client left", True


def ttft(kvsteer, url, model, slack_ms=5):
    """What kvsteer's log says of the first token, beside what a client saw: the median of five calls by
    their difference, since this client shares the machine. (result, is_right). slack_ms: how late it may be."""
    pairs = []
    for i in range(5):
        s = Stream(url, model, f"{i}: name three rivers and the seas they end in, " * 20, max_tokens=5)
        s.read()
        s.close()
        pairs.append((1000 * s.first_content_s(), float(kvsteer.access_line(s.id)["ttft_ms"])))
    seen_ms, said_ms = sorted(pairs, key=lambda p: abs(p[0] - p[1]))[2]
    return f"client {seen_ms:.1f} ms, ttft_ms={said_ms:.1f}", abs(seen_ms - said_ms) <= slack_ms


def killed_after(url, model, delay_s, kill, n=8):
    """n streams begun at once; kill() after delay_s. (with an error before content, after content, whole)."""
    def one(i):
        try:
            s = Stream(url, model, f"Story {i}: tell me all about rivers and seas, please.", max_tokens=60)
            if s.answer.status_code != 200:
                return "before"
            s.read()
            s.close()
            if s.is_whole():
                return "whole"
            return "before" if s.first_content_s() is None else "after"
        except httpx.HTTPError:
            return "before"

    with concurrent.futures.ThreadPoolExecutor(n + 1) as pool:
        waiting = [pool.submit(one, i) for i in range(n)]
        time.sleep(delay_s)  # the moment is what is tried
        kill()
        ends = [w.result() for w in waiting]
    return ends.count("before"), ends.count("after"), ends.count("whole")
