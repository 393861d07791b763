"""Requests in the public shapes of agents and chat clients, with made-up contents. Each shape is a
function of a conversation and a turn: (path, headers, body). Turn n repeats the history of turn n-1
as that client repeats it. What a client changes in every request changes here too."""
import json
import uuid

from harness import text

BILLING = "x-anthropic-billing-header"


def billing(who, turn):
    return f"{BILLING}: cc_version=2.1.{who}.{turn:03x}; cc_entrypoint=cli; cch={(who * 7919 + turn * 104729) & 0xfffff:05x};"


def name_of(who):
    return str(uuid.UUID(int=who + 1))


def schema(*names):
    return {"type": "object", "properties": {n: {"type": "string", "description": text(1, len(n))[:80]} for n in names}, "required": list(names)}


TOOLS = [("read", ("path",)), ("write", ("path", "content")), ("grep", ("pattern", "path")), ("shell", ("command",))]


def question(who, turn):
    return f"Task {who}.{turn}: " + text(1, who * 100 + turn)[:400]


def result(who, turn):
    return f"output {who}.{turn}\n" + text(1, who * 100 + turn + 50)[:700]


def anthropic_system(who, turn):
    return [{"type": "text", "text": billing(who, turn)},
            {"type": "text", "text": "You are Claude Code, a command line agent.", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": text(4, 3), "cache_control": {"type": "ephemeral", "ttl": "1h"}}]


def anthropic_messages(who, turn):
    """A call and its result for each turn before, with reasoning; the mark of the cache moves."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>Be careful.</system-reminder>"},
                                             {"type": "text", "text": question(who, 0)}]}]
    for i in range(turn):
        messages += [
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": text(1, i)[:200], "signature": f"c2ln{turn}{i}"},
                {"type": "tool_use", "id": f"toolu_{who}_{i}", "name": "read", "input": {"path": f"/src/{i}.c"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": f"toolu_{who}_{i}", "content": [{"type": "text", "text": result(who, i)}], "is_error": False},
                {"type": "text", "text": question(who, i + 1)}]}]
    messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return messages


def claude_code(who, turn):
    tools = [{"name": n, "description": text(1, i)[:600], "input_schema": schema(*a)} for i, (n, a) in enumerate(TOOLS)]
    person = json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": name_of(who)})
    return ("/v1/messages?beta=true",
            {"User-Agent": "claude-cli/2.1.77 (external, cli)", "Anthropic-Version": "2023-06-01", "X-App": "cli", "X-Claude-Code-Session-Id": name_of(who)},
            {"model": "m", "messages": anthropic_messages(who, turn), "system": anthropic_system(who, turn), "tools": tools,
             "metadata": {"user_id": person}, "max_tokens": 32000, "thinking": {"type": "adaptive"}, "stream": False})


def claude_code_text(who, turn):
    """The system prompt as one string, and a system message within the conversation."""
    path, headers, body = claude_code(who, turn)
    body["system"] = "\n".join(part["text"] for part in body["system"])
    body["messages"].insert(1, {"role": "system", "content": [{"type": "text", "text": billing(who, turn + 50)}, {"type": "text", "text": "Mode: plan."}]})
    return path, headers, body


def gateway(who, turn):
    """Claude Code behind a gateway that translates to chat completions and keeps the line."""
    messages = [{"role": "system", "content": [{"type": "text", "text": part["text"]} for part in anthropic_system(who, turn)]}]
    messages += chat_history(who, turn, "")
    return "/v1/chat/completions", {"User-Agent": "litellm/1.80"}, {"model": "m", "messages": messages, "tools": chat_tools(), "stream": False}


def chat_tools():
    return [{"type": "function", "function": {"name": n, "description": text(1, i)[:400], "parameters": schema(*a)}} for i, (n, a) in enumerate(TOOLS)]


def chat_history(who, turn, empty, parts=False):
    """User turns with a call and its result between them; `empty` is the content beside a call."""
    def user(i):
        return {"role": "user", "content": [{"type": "text", "text": question(who, i)}] if parts else question(who, i)}
    messages = [user(0)]
    for i in range(turn):
        call = {"id": f"call_{who}_{i}", "type": "function", "function": {"name": "grep", "arguments": json.dumps({"pattern": f"x{i}", "path": "."})}}
        messages += [{"role": "assistant", "content": empty, "tool_calls": [call]},
                     {"role": "tool", "tool_call_id": call["id"], "content": result(who, i)}, user(i + 1)]
    return messages


def responses_items(who, turn, tag):
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": question(who, 0)}]}]
    for i in range(turn):
        items += [
            {"type": "reasoning", "id": f"rs_{tag}{turn}{i}", "summary": [{"type": "summary_text", "text": text(1, i)[:100]}], "content": None,
             "encrypted_content": f"Z0FBQ{turn}{i}"},
            {"type": "function_call", "id": f"fc_{tag}{turn}{i}", "call_id": f"call_{who}_{i}", "name": "shell", "arguments": '{"command":["ls"]}', "status": "completed"},
            {"type": "function_call_output", "call_id": f"call_{who}_{i}", "output": result(who, i)},
            {"type": "message", "id": f"msg_{tag}{turn}{i}", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": f"Done {i}.", "annotations": [], "logprobs": []}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": question(who, i + 1)}]}]
    return items


def responses_tools():
    return [{"type": "function", "name": n, "description": text(1, i)[:400], "strict": False, "parameters": schema(*a)} for i, (n, a) in enumerate(TOOLS)]


def codex(who, turn):
    context = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>read only</permissions>"}]}
    return ("/v1/responses",
            {"User-Agent": "codex_cli_rs/0.120.0", "Originator": "codex_cli_rs", "Session_id": name_of(who), "X-Codex-Turn-Metadata": f'{{"turn":{turn}}}'},
            {"model": "m", "instructions": text(4, 5), "input": [context, *responses_items(who, turn, "c")], "tools": responses_tools(), "tool_choice": "auto",
             "parallel_tool_calls": True, "reasoning": {"effort": "medium"}, "store": False, "stream": False, "include": ["reasoning.encrypted_content"],
             "prompt_cache_key": name_of(who), "client_metadata": {"turn": str(turn)}})


def openai_agents(who, turn):
    """Items come back with the ids and states that the server gave them."""
    return ("/v1/responses", {"User-Agent": "Agents/Python 0.6.0"},
            {"model": "m", "instructions": text(4, 6), "input": responses_items(who, turn, "a")[:], "tools": responses_tools(), "include": [],
             "metadata": {"trace": f"trace_{who}_{turn}"}, "safety_identifier": "team", "stream": False})


def opencode(who, turn):
    return ("/v1/chat/completions", {"User-Agent": "opencode/1.3.0", "X-Session-Affinity": name_of(who)},
            {"model": "m", "max_tokens": 32000, "messages": [{"role": "system", "content": text(4, 7)}, *chat_history(who, turn, "")], "tools": chat_tools(),
             "tool_choice": "auto", "stream": False, "prompt_cache_key": name_of(who)})


def cline(who, turn):
    """Text parts; each user turn holds the state of the editor at its time."""
    messages = [{"role": "system", "content": text(8, 8)}]
    for i in range(turn + 1):
        messages.append({"role": "user", "content": [
            {"type": "text", "text": f"<task>{question(who, i)}</task>"},
            {"type": "text", "text": f"<environment_details>\n# Current Time\n12/1/2026, 10:{who:02}:{i:02}\n</environment_details>"}]})
        if i < turn:
            messages.append({"role": "assistant", "content": f"<read_file><path>src/{i}.c</path></read_file>"})
    return "/v1/chat/completions", {"X-Task-Id": name_of(who)}, {"model": "m", "temperature": 0, "messages": messages, "stream": False}


def langchain(who, turn):
    messages = [{"content": text(4, 9), "role": "system"}]
    for m in chat_history(who, turn, None):
        messages.append({"content": m.pop("content"), **m})
    return ("/v1/chat/completions", {"X-Stainless-Retry-Count": str(turn)},
            {"messages": messages, "model": "m", "temperature": 0.0, "n": 1, "tools": chat_tools(), "user": "service", "stream": False})


def open_webui(who, turn):
    messages = [{"role": "system", "content": text(4, 10)}]
    for i in range(turn + 1):
        messages.append({"role": "user", "content": question(who, i)})
        if i < turn:
            messages.append({"role": "assistant", "content": f"Answer {i}. " + text(1, i)[:300]})
    return ("/v1/chat/completions", {"X-OpenWebUI-Chat-Id": name_of(who), "X-OpenWebUI-Message-Id": name_of(who * 100 + turn)},
            {"stream": False, "model": "m", "messages": messages, "metadata": {"chat_id": name_of(who), "message_id": name_of(who * 100 + turn)}})


def aider(who, turn):
    """Examples before the history; a reminder behind the last question, which the next turn moves."""
    messages = [{"role": "system", "content": text(4, 11)}, {"role": "user", "content": "Change get_factorial()"},
                {"role": "assistant", "content": "app.py\n<<<<<<< SEARCH\n=======\n>>>>>>> REPLACE"}]
    for i in range(turn + 1):
        messages.append({"role": "user", "content": question(who, i)})
        if i < turn:
            messages.append({"role": "assistant", "content": f"Edit {i}: " + text(1, i + 20)[:300]})
    messages.append({"role": "system", "content": "Reply with *SEARCH/REPLACE* blocks."})
    return "/v1/chat/completions", {"User-Agent": "litellm/1.80 aider"}, {"model": "m", "messages": messages, "temperature": 0, "stream": False}


SHAPES = [claude_code, claude_code_text, gateway, codex, openai_agents, opencode, cline, langchain, open_webui, aider]
