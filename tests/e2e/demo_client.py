"""The client of demo.sh: conversations through a kvsteerd, whose turns are to return to the worker
that holds their prefix.

usage: demo_client.py ROUTER_URL

Six conversations take turns; then one worker is made hot with long streams, and the others' next
turns must still find their caches. Prints a line for each turn, then a verdict; exits 1 where
affinity failed.
"""
import sys
import threading
import time
import urllib.error
import urllib.request

import openai

CONVERSATIONS = 6
TURNS = 4
HOT_STREAMS = 12
READY_S = 30
HIT = 0.8  # a follow-up turn with less of its prompt cached has lost its worker

TOPICS = ["harbours", "bridges", "glaciers", "orchards", "railways", "lanterns"]


def long_instructions(topic):
    """About 2,500 tokens that no other conversation shares."""
    rules = [f"Rule {i}: when someone asks about {topic}, weigh point {i * 7 % 101} first." for i in range(1, 101)]
    return f"You are an expert on {topic}.\n" + "\n".join(rules)


class Conversation:
    def __init__(self, number):
        self.name = TOPICS[number]
        self.messages = [{"role": "system", "content": long_instructions(self.name)}]
        self.worker = None
        self.turns = 0


class Turn:
    """What one turn showed."""

    def __init__(self, headers):
        self.worker = headers.get("X-Kvsteer-Worker", "?")
        self.believed = headers.get("X-Kvsteer-Cached", "?")
        self.text = ""
        self.usage = None
        self.first_s = None

    @property
    def share(self):
        return self.usage.prompt_tokens_details.cached_tokens / self.usage.prompt_tokens


def ask_streamed(client, messages, max_tokens):
    start = time.monotonic()
    raw = client.chat.completions.with_raw_response.create(
        model="demo", messages=messages, max_tokens=max_tokens, stream=True, stream_options={"include_usage": True}
    )
    turn = Turn(raw.headers)
    for chunk in raw.parse():
        if chunk.choices and chunk.choices[0].delta.content:
            turn.first_s = turn.first_s or time.monotonic() - start
            turn.text += chunk.choices[0].delta.content
        turn.usage = chunk.usage or turn.usage
    return turn


def ask_whole(client, messages, max_tokens):
    raw = client.chat.completions.with_raw_response.create(model="demo", messages=messages, max_tokens=max_tokens)
    turn = Turn(raw.headers)
    answer = raw.parse()
    turn.text, turn.usage = answer.choices[0].message.content, answer.usage
    return turn


def next_turn(client, conversation, streamed):
    """Asks, prints a line, and says whether a follow-up found its worker and its cache."""
    conversation.turns += 1
    question = f"Question {conversation.turns}: what else should one know about {conversation.name}?"
    conversation.messages.append({"role": "user", "content": question})
    turn = (ask_streamed if streamed else ask_whole)(client, conversation.messages, 24)
    conversation.messages.append({"role": "assistant", "content": turn.text})
    is_hit = conversation.worker is None or (turn.worker == conversation.worker and turn.share >= HIT)
    first = f"{turn.first_s * 1000:7.0f} ms" if streamed else "  (whole)"
    print(
        f"{conversation.name:<10}{conversation.turns:>4}   {turn.worker:<8}{turn.usage.prompt_tokens:>7}"
        f"{turn.share:>9.0%}   {turn.believed:>9}  {first:>10}   {'' if is_hit else 'MISSED, was ' + conversation.worker}",
        flush=True,
    )
    conversation.worker = turn.worker
    return is_hit, turn


def print_head():
    print(f"\n{'about':<10}{'turn':>4}   {'worker':<8}{'prompt':>7}{'cached':>9}   {'believed':>9}  {'first token':>10}")


class HotStreams:
    """Long streams that continue one conversation, and so gather on its worker."""

    def __init__(self, client, conversation):
        self.enough = threading.Event()
        self.workers = []
        self.failures = []
        self.threads = []
        for i in range(HOT_STREAMS):
            started = threading.Event()
            messages = conversation.messages + [{"role": "user", "content": f"Write story {i}, a long one."}]
            thread = threading.Thread(target=self.read, args=(client, messages, started))
            thread.start()
            self.threads.append(thread)
            if not started.wait(READY_S):
                self.failures.append("a long stream did not start")

    def read(self, client, messages, started):
        try:
            raw = client.chat.completions.with_raw_response.create(
                model="demo", messages=messages, max_tokens=20000, stream=True
            )
            stream = raw.parse()
            self.workers.append(raw.headers.get("X-Kvsteer-Worker", "?"))
            for _ in stream:
                started.set()
                if self.enough.is_set():
                    break
            stream.close()
        except openai.OpenAIError as e:
            self.failures.append(repr(e))
            started.set()

    def end(self):
        self.enough.set()
        for thread in self.threads:
            thread.join()


def wait_ready(url):
    end = time.monotonic() + READY_S
    while True:
        try:
            urllib.request.urlopen(url + "/readiness", timeout=5).close()
            return
        except (urllib.error.URLError, OSError) as e:
            if time.monotonic() > end:
                sys.exit(f"the router has no usable worker: {e}")
            time.sleep(0.1)


def first_part(client, conversations):
    """Interleaved turns, streamed and whole. Returns hits, follow-ups, and first-token times of
    first and later turns."""
    hits = follow_ups = 0
    cold, warm = [], []
    print(f"\nPart 1: {len(conversations)} conversations take turns, {TURNS} each.")
    print_head()
    for n in range(TURNS):
        for conversation in conversations:
            is_hit, turn = next_turn(client, conversation, streamed=n != 1)
            if n > 0:
                follow_ups += 1
                hits += is_hit
            if turn.first_s is not None:
                (warm if n > 0 else cold).append(turn.first_s)
    return hits, follow_ups, cold, warm


def second_part(client, conversations):
    """One worker hot; the next turns of the conversations elsewhere. Returns hits, follow-ups and
    complaints."""
    hot = conversations[0].worker
    others = [c for c in conversations if c.worker != hot]
    print(f"\nPart 2: {HOT_STREAMS} long streams continue the talk about {conversations[0].name} on {hot}.")
    streams = HotStreams(client, conversations[0])
    try:
        counts = {w: streams.workers.count(w) for w in sorted(set(streams.workers))}
        print("Streams by worker: " + ", ".join(f"{w} {n}" for w, n in counts.items()) + ".")
        print(f"{hot} is beyond balance_abs_threshold = 8; that may cost its own requests their cache, nobody else's:")
        print_head()
        hits = sum(next_turn(client, c, streamed=True)[0] for c in others)
    finally:
        streams.end()
    if counts.get(hot, 0) <= 8:
        streams.failures.append(f"{hot} did not become hot")
    return hits, len(others), streams.failures


def main():
    url = sys.argv[1]
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=60)
    conversations = [Conversation(i) for i in range(CONVERSATIONS)]
    wait_ready(url)
    client.models.list()  # so that the first turn's time is not the client's own start
    hits, follow_ups, cold, warm = first_part(client, conversations)
    used = len({c.worker for c in conversations})
    more_hits, more, failures = second_part(client, conversations)
    client.close()

    print("\nVerdict")
    print(f"  {hits} of {follow_ups} follow-up turns returned to the worker that held their prefix; {used} workers shared the work")
    print(f"  {more_hits} of {more} still did while one worker was hot")
    print(f"  time to first token, mean: {mean_ms(cold)} for first turns, {mean_ms(warm)} for follow-ups (simulated workers)")
    for failure in failures:
        print(f"  FAILED: {failure}")
    is_good = hits == follow_ups and more_hits == more and more > 0 and used > 1 and not failures
    print("  affinity held" if is_good else "  AFFINITY FAILED")
    sys.exit(0 if is_good else 1)


def mean_ms(times):
    return f"{sum(times) / len(times) * 1000:.0f} ms"


if __name__ == "__main__":
    main()
