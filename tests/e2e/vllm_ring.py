"""The vLLM router's consistent-hash ring, written down a second time, from its description: what
the C is compared with.

H(text) = Murmur64A(Furc(text) as four bytes); Furc reads a stream of bits, 64 from each word: word
0 is Murmur64A(text), each further one Murmur64A of the eight bytes of the word before.
"""
import bisect

MASK = (1 << 64) - 1
M, SEED = 0xc6a4a7935bd1e995, 4193360111
LEVELS, TRIES, LIMIT = 23, 32, 2 ** 23 - 1


def murmur64a(data):
    h = SEED ^ (len(data) * M & MASK)
    whole = len(data) // 8 * 8
    for i in range(0, whole, 8):
        k = int.from_bytes(data[i:i + 8], "little") * M & MASK
        k = (k ^ k >> 47) * M & MASK
        h = (h ^ k) * M & MASK
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * M & MASK
    h = (h ^ h >> 47) * M & MASK
    return h ^ h >> 47


class Bits:
    def __init__(self, data):
        self.words = [murmur64a(data)]

    def __getitem__(self, i):
        while len(self.words) <= i // 64:
            self.words.append(murmur64a(self.words[-1].to_bytes(8, "little")))
        return self.words[i // 64] >> i % 64 & 1


def furc(data):
    bits, level, at = Bits(data), LEVELS, LEVELS
    for _ in range(TRIES):
        while not bits[at]:  # the level of the highest set bit: the number's length
            if level == 0:
                return 0
            level -= 1
            at = level
        digits = [at + LEVELS * (i + 1) for i in range(max(level - 1, 0))]
        number = int("1" + "".join(str(bits[d]) for d in digits), 2)
        if number < LIMIT:
            return number
        at += LEVELS * max(level, 1)
    return 0


def ring_hash(text):
    return murmur64a(furc(text.encode() if isinstance(text, str) else text).to_bytes(4, "little"))


class Ring:
    def __init__(self, urls):
        points = {}
        for url in sorted(urls):  # on one spot the greater stays
            for i in range(160):
                points[ring_hash(f"{url}:{i}")] = url
        self.at = sorted(points)
        self.owner = [points[p] for p in self.at]

    def order(self, key):
        """The workers as the key's point meets them; the first is its own."""
        start = bisect.bisect_left(self.at, ring_hash(key))
        seen = dict.fromkeys(self.owner[(start + i) % len(self.at)] for i in range(len(self.at)))
        return list(seen)


def rendezvous(urls, key):
    return max(sorted(urls), key=lambda url: (ring_hash(f"{key}:{url}"), url))
