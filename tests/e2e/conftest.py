"""Fixtures: router (a factory) and worker (a factory); each teardown asserts balance, exit status
and a clean log."""
import os

import pytest

import harness


def pytest_configure(config):
    config.addinivalue_line("markers", "tsan: also run against the ThreadSanitizer build")
    config.addinivalue_line("markers", "slow: soak and scale")


def pytest_collection_modifyitems(config, items):
    if harness.builddir() and os.path.exists(os.path.join(harness.builddir(), "kvsteerd")):
        return
    skip = pytest.mark.skip(reason="KVSTEER_BUILDDIR does not name a build with kvsteerd")
    for item in items:
        item.add_marker(skip)


@pytest.fixture
def worker():
    """worker("w0", handler, ...) -> harness.Worker; stopped at the end."""
    made = []

    def make(name="w", handler=harness.answer_ok, **kw):
        w = harness.Worker(name, handler, **kw)
        made.append(w)
        return w
    yield make
    for w in made:
        w.stop()


@pytest.fixture
def router(tmp_path, worker):
    """router(workers, pool=..., keys=..., ...) -> a ready harness.Router with all workers
    healthy."""
    made = []

    def make(workers=(), pool="", keys="", extra="", wait=True, **kw):
        conf = kw.pop("conf", None)
        if conf is None and "args" not in kw:
            conf = harness.worker_conf(workers, pool, extra)
        r = harness.Router(tmp_path / f"r{len(made)}", conf=conf, router_keys=keys, **kw)
        made.append(r)
        if wait and workers and "args" not in kw:
            r.wait_workers(*[w.name for w in workers])
        return r
    yield make
    errors = []
    for r in made:
        try:
            r.stop()
        except BaseException as e:  # every router is ended before the first failure is told
            errors.append(e)
            r.kill()
    if errors:
        raise errors[0]


@pytest.fixture(scope="module")
def shared_pair(request, tmp_path_factory):
    """A router and its one worker for a whole module, whose PAIR says what is not as usual: keys of
    the router, of the pool, env, handler."""
    how = request.module.PAIR
    w = harness.Worker("w0")
    r = harness.Router(tmp_path_factory.mktemp("pair"), conf=harness.worker_conf([w], harness.LASTING + "no_worker_wait = 0\n" + how.get("pool", "")),
                       router_keys="threads = 2\n" + how.get("keys", ""), env=how.get("env"))
    r.wait_workers("w0")
    yield r, w
    r.stop()
    w.stop()


@pytest.fixture
def pair(shared_pair, request):
    """The module's router and worker, at rest, with nothing recorded yet."""
    r, w = shared_pair
    r.wait_idle()
    w.handler = request.module.PAIR.get("handler", harness.answer_ok)
    w.clear()
    return r, w


@pytest.fixture(scope="session")
def shared():
    """The folder of shared cases; tests that need it skip without it."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.environ.get("KVSTEER_SHARED", os.path.join(here, "..", "..", "..", "shared"))
    if not os.path.isdir(os.path.join(path, "corpus")):
        pytest.skip(f"no shared corpus in {path} (set KVSTEER_SHARED)")
    return path
