#!/usr/bin/env python3
"""The header X-Kvsteer-Prefix for a request, made by the client: what kvsteerd would hash of its prompt, by kvsteer-prefix(7).

With it the router reads nothing of the body, which goes on to the worker while it comes:

    body = json.dumps({"model": "m", "messages": messages})
    headers = {"X-Kvsteer-Prefix": kvsteer_prefix.header("/v1/chat/completions", body), "X-Kvsteer-Model": "m"}

The body is the text that is sent, since numbers in tools count as they are spelled. Needs the package xxhash (Debian: python3-xxhash).
An example to copy; as a program it prints the header for a body: kvsteer_prefix.py /v1/chat/completions <body.json
"""
import json
import sys

import xxhash

MEDIA_BYTES, MEDIA_MOST = 4096, 1024
HASHES_MOST = 1890  # what the head of a request has room for


class Number(str):
    """A JSON number as it was spelled."""


class Object(list):
    """A JSON object's members as they came."""

    def get(self, name):
        return next((v for k, v in reversed(self) if k == name), None)


def loads(body):
    return json.loads(body, object_pairs_hook=Object, parse_int=Number, parse_float=Number)


def is_list(v):
    return isinstance(v, list) and not isinstance(v, Object)


def is_text(v):
    return isinstance(v, str) and not isinstance(v, Number)


def member(v, name):
    return v.get(name) if isinstance(v, Object) else None


def encode(text):
    try:
        return text.encode("utf-8", "surrogateescape")  # bytes that are no UTF-8 stay as they came
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def border(tag, text=None):
    return b"\xff" + tag.encode() + (encode(text) if is_text(text) else b"")


def optional(tag, text):
    return border(tag, text) if is_text(text) else b""


def digest(text, size):
    return border("i") + xxhash.xxh3_64_intdigest(encode(text)).to_bytes(8, "little") * (size // 8)


def spell(v):
    """The public form of a JSON value."""
    if is_text(v):
        return digest(v, 8) if v.startswith("data:") else border('"', v) + border('"')
    if isinstance(v, Number):
        return v.encode()
    if isinstance(v, Object):
        return b"{" + b",".join(spell(k) + b":" + spell(x) for k, x in v) + b"}"
    if isinstance(v, list):
        return b"[" + b",".join(map(spell, v)) + b"]"
    return {None: b"null", True: b"true", False: b"false"}[v]


def without(v, *names):
    return Object((k, x) for k, x in v if k not in names) if isinstance(v, Object) else v


def unknown(v, *names):
    return border("j") + spell(without(v, "cache_control", *names))


def tools(tag, v):
    if is_list(v):
        return b"".join(border(tag) + spell(without(tool, "cache_control")) for tool in v)
    return b"" if v is None else border(tag) + spell(v)


def arguments(v):
    if v is None:
        return b""
    return border("a", v) if is_text(v) else border("a") + spell(v)


def call(border_and_id, function):
    given = member(function, "arguments")
    return border_and_id + optional("d", member(function, "name")) + arguments(member(function, "input") if given is None else given)


def reasoning(v):
    if is_list(v):
        return b"".join(optional("g", member(item, "text")) for item in v)
    return optional("g", v)


TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
THOUGHTS = {"thinking": "thinking", "redacted_thinking": "data", "reasoning_text": "text", "summary_text": "text"}
MEDIA = {"image_url", "input_image", "image", "input_audio", "audio_url", "audio", "video_url", "input_video", "video", "file", "input_file", "document"}
PLACES = ("image_url", "video_url", "audio_url", "input_audio", "audio", "image", "video", "file", "source", "url", "data", "file_data", "file_url", "file_id")


BILLING = "x-anthropic-billing-header"  # Claude Code's line at the head of its system prompt, new in each request


class Prompt:
    """One body's stream; counts its media."""

    def __init__(self, drops_billing=False):
        self.n_media = 0
        self.is_system = False
        self.drops_billing = drops_billing

    def text(self, v, is_part=False):
        """A text; engines drop the billing line from system prompts, and /v1/messages the part that begins with it."""
        if not self.is_system or not v.startswith(BILLING):
            return border("x", v)
        rest = "" if is_part and self.drops_billing else v.partition("\n")[2]
        return border("x", rest) if rest else b""

    def media(self, text):
        self.n_media += 1
        return digest(text, MEDIA_BYTES if self.n_media <= MEDIA_MOST else 8)

    def find_media(self, v):
        for _ in range(2):
            found = [member(v, name) for name in PLACES if member(v, name) is not None]
            if not found:
                break
            v = found[0]
        return v if is_text(v) else None

    def part(self, v, is_inner=False):
        if is_text(v):
            return self.text(v)
        if not isinstance(v, Object):
            return unknown(v)
        kind = v.get("type")
        if kind is None:
            kind = "text" if is_text(v.get("text")) else "image"
        kind = kind if is_text(kind) else ""
        if kind in TEXTS and is_text(v.get(TEXTS[kind])):
            return self.text(v.get(TEXTS[kind]), True)
        if kind in THOUGHTS and is_text(v.get(THOUGHTS[kind])):
            return border("g", v.get(THOUGHTS[kind]))
        if kind == "tool_use":
            return border("c", v.get("id")) + optional("d", v.get("name")) + arguments(v.get("input"))
        if kind == "tool_result" and not is_inner:
            return border("r", v.get("tool_use_id")) + self.content(v.get("content"), True)
        found = self.find_media(v) if kind in MEDIA else None
        return self.media(found) if found is not None else unknown(v)

    def content(self, v, is_inner=False):
        if v is None:
            return b""
        return b"".join(self.part(item, is_inner) for item in (v if is_list(v) else [v]))

    def message(self, m):
        if not isinstance(m, Object):
            return unknown(m)
        out = border("m", m.get("role")) + optional("n", m.get("name"))
        out += self.system_content(m.get("content")) if m.get("role") == "system" else self.content(m.get("content"))
        for c in m.get("tool_calls") if is_list(m.get("tool_calls")) else []:
            function = member(c, "function")
            out += call(border("c", member(c, "id")), member(c, "custom") if function is None else function)
        if isinstance(m.get("function_call"), Object):
            out += call(border("c"), m.get("function_call"))
        return out + optional("r", m.get("tool_call_id")) + reasoning(m.get("reasoning_content")) + reasoning(m.get("reasoning"))

    def system_content(self, v):
        self.is_system = True
        out = self.content(v)
        self.is_system = False
        return out

    def system(self, v):
        return b"" if v is None else border("s") + self.system_content(v)

    def item(self, v):
        kind = member(v, "type")
        if kind == "message" or (kind is None and member(v, "role") is not None):
            return self.message(v)
        if kind in ("function_call", "custom_tool_call"):
            return call(border("c", v.get("call_id")), v)
        if kind in ("function_call_output", "custom_tool_call_output"):
            return border("r", v.get("call_id")) + self.content(v.get("output"), True)
        if kind == "reasoning":
            return reasoning(v.get("summary")) + reasoning(v.get("content"))
        return unknown(v) if kind == "item_reference" else unknown(v, "id", "status")

    def chat(self, body):
        messages = body.get("messages")
        return (tools("t", body.get("tools")) + tools("f", body.get("functions"))
                + b"".join(map(self.message, messages if is_list(messages) else [])))

    def anthropic(self, body):
        messages = body.get("messages")
        return (tools("t", body.get("tools")) + self.system(body.get("system"))
                + b"".join(map(self.message, messages if is_list(messages) else [])))

    def responses(self, body):
        out = tools("t", body.get("tools")) + self.system(body.get("instructions")) + optional("p", body.get("previous_response_id"))
        given = body.get("input")
        if is_text(given):
            return out + border("m", "user") + border("x", given)
        return out + b"".join(map(self.item, given if is_list(given) else []))


def ids(v):
    if not all(isinstance(i, Number) and i.isdigit() and int(i) < 1 << 32 for i in v):
        return "t", b""
    return "t", b"".join(int(i).to_bytes(4, "little") for i in v)


def prompt(v):
    """A prompt, or the first of a list of them."""
    if is_text(v):
        return "b", encode(v)
    if not is_list(v) or not v:
        return "b", b""
    if isinstance(v[0], Number):
        return ids(v)
    if all(map(is_text, v)):
        return "b", border("l", v[0])
    return ids(v[0]) if all(map(is_list, v)) else ("b", b"")


def document(tag, v):
    text = member(v, "text")
    v = text if is_text(text) else v
    if v is None:
        return b""
    return border(tag, v) if is_text(v) else border(tag) + spell(v)


def kind_of(v):
    return "number" if isinstance(v, Number) else type(v).__name__ if not isinstance(v, bool) else str(v)


def first_document(tag, v):
    if not is_list(v):
        return document(tag, v)
    is_even = v and (isinstance(v[0], Number) or len({kind_of(x) for x in v}) == 1)
    return document(tag, v[0]) if is_even else b""


def generate(p, body):
    text = body.get("text") if body.get("text") is not None else body.get("prompt")
    if text is None:
        return prompt(body.get("input_ids"))
    images = body.get("image_data")
    images = [images] if is_text(images) else images if is_list(images) else []
    unit, stream = prompt(text)
    return unit, b"".join(p.media(i) for i in images if is_text(i) and is_text(text)) + stream


def rerank(body):
    documents = body.get("documents")
    return document("q", body.get("query")) + b"".join(document("k", d) for d in (documents if is_list(documents) else []))


def first_of(body, *names):
    """The first of these members that is there, or None."""
    return next((body.get(n) for n in names if body.get(n) is not None), None)


def score(body):
    return (first_document("q", first_of(body, "text_1", "data_1", "queries", "query"))
            + first_document("k", first_of(body, "text_2", "data_2", "documents", "items")))


def any_text(p, body):
    """What other APIs call their prompt."""
    messages, text = body.get("messages"), first_of(body, "prompt", "input", "content", "texts", "inputs")
    if messages is not None:
        if is_list(messages) and messages and is_list(messages[0]):
            messages = messages[0]
        return "b", tools("t", body.get("tools")) + b"".join(map(p.message, messages if is_list(messages) else []))
    if body.get("input_prefix") is not None:
        extra = body.get("input_extra")
        return "b", ((border("j") + spell(extra) if extra is not None else b"") + optional("x", body.get("input_prefix"))
                     + optional("x", body.get("prompt")) + optional("x", body.get("input_suffix")))
    if text is not None:
        if is_list(text) and text and all(isinstance(m, Object) for m in text):
            return "b", b"".join(map(p.message, text))
        unit, data = prompt(text)
        return unit, (p.system(body.get("system")) if is_text(text) else b"") + data
    if body.get("state") is not None:
        return "b", p.system(body.get("instructions")) + document("q", body.get("state"))
    return generate(p, body)


OTHER_NAMES = {"/chat/completions": "/v1/chat/completions", "/responses": "/v1/responses", "/v1/reranking": "/rerank", "/reranking": "/rerank",
               "/v1/tokenize": "/tokenize", "/generative_scoring": "/score"}
ANY_TEXT = ("/v1/chat/completions/batch", "/cohere/v2/chat", "/api/chat", "/api/generate", "/completion", "/completions", "/infill", "/v1/systemone",
            "/v1/decisions", "/embeddings", "/embedding", "/v2/embed", "/encode", "/pooling", "/classify", "/v1/classify")


def stream(path, body):
    """The unit and the bytes of the prompt stream of a body to that path."""
    path = OTHER_NAMES.get(path, path)
    p, body = Prompt(path == "/v1/messages"), loads(body)
    if path in ANY_TEXT:
        return any_text(p, body)
    if path == "/v1/chat/completions":
        return "b", p.chat(body)
    if path == "/v1/completions":
        return prompt(body.get("prompt"))
    if path == "/v1/responses":
        return "b", p.responses(body)
    if path == "/v1/messages":
        return "b", p.anthropic(body)
    if path == "/v1/embeddings":
        return ("b", p.chat(body)) if body.get("input") is None else prompt(body.get("input"))
    if path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        return "b", rerank(body)
    if path in ("/v1/score", "/score"):
        return "b", score(body)
    if path == "/generate":
        return generate(p, body)
    if path == "/inference/v1/generate":
        return prompt(body.get("token_ids"))
    if path == "/tokenize":
        return prompt(body.get("prompt")) if body.get("messages") is None else ("b", p.chat(body))
    return "b", b""


def chain(data, step):
    """The hashes of the whole blocks: each says what all before it were."""
    seed, out = 0, []
    for at in range(0, len(data) - step + 1, step):
        seed = xxhash.xxh3_64_intdigest(data[at:at + step], seed)
        out.append(seed)
    return out


def header(path, body, block_bytes=128, block_ids=32):
    """What X-Kvsteer-Prefix says of this body (JSON text, str or bytes) to this path. The router's own blocks are 128 bytes, unless configured, or 32 ids."""
    unit, data = stream(path, body.decode("utf-8", "surrogateescape") if isinstance(body, bytes) else body)
    size = block_ids if unit == "t" else block_bytes
    hashes = chain(data, size * (4 if unit == "t" else 1))[:HASHES_MOST]
    return f"{size}{unit};" + ",".join(f"{h:x}" for h in hashes)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: kvsteer_prefix.py PATH <BODY")
    print(header(sys.argv[1], sys.stdin.buffer.read()))
