"""A configuration that is read again when its files change (watch_config, C24)."""
import hashlib
import os

import pytest

import harness

CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
WATCH = "watch_config = on\n"


def names(r):
    return sorted(w["name"] for w in r.admin("GET", "workers")[1]["workers"])


def wait_names(r, *want):
    harness.wait_until(lambda: names(r) == sorted(want), f"workers {want}: {r.log()[-2000:]}")


def test_c24_a_changed_file_is_read(router, worker):
    a, b = worker("a"), worker("b")
    r = router([a], keys=WATCH)
    r.write_conf(harness.worker_conf([a, b]))
    r.wait_workers("a", "b")
    # And once the key is off, no longer: the last reload said so itself.
    r.router_keys = ""
    r.write_conf(harness.worker_conf([a]))
    wait_names(r, "a")
    assert r.admin("GET", "status")[1]["counters"]["reloads"] == 2


def test_c24_a_broken_file_changes_nothing_and_is_told_once(router, worker):
    a, b = worker("a"), worker("b")
    r = router([a], keys=WATCH, allow_errors=["reload failed"])
    r.write_conf("[pool default]\nnonsense = 1\n" + harness.worker_conf([a, b]))
    r.wait_log("reload failed, nothing changed")
    assert names(r) == ["a"] and r.request(body=CHAT).status == 200
    r.write_conf(harness.worker_conf([a, b]))
    r.wait_workers("a", "b")
    counters = r.admin("GET", "status")[1]["counters"]
    assert counters["reloads_failed"] == 1 and counters["reloads"] == 1


def test_c24_a_reload_by_hand_is_not_followed_by_another(router, worker):
    a, b = worker("a"), worker("b")
    r = router([a], keys=WATCH)
    assert r.reload(harness.worker_conf([a, b]))[0]
    r.wait_workers("a", "b")
    r.write_conf(harness.worker_conf([b]))
    wait_names(r, "b")
    assert r.admin("GET", "status")[1]["counters"]["reloads"] == 2


def test_c24_a_config_map(tmp_path, router, worker):
    """Links that change as a whole: kvsteer.conf -> ..data/kvsteer.conf, ..data -> ..1"""
    a, b = worker("a"), worker("b")
    mount = tmp_path / "mount"
    admin = tmp_path / "a.sock"
    head = f"[router]\nlisten = 127.0.0.1:0\nmetrics_listen = 127.0.0.1:0\nadmin_socket = {admin}\ndrain_grace = 0\n{WATCH}"

    def publish(n, text):
        version = mount / f"..{n}"
        version.mkdir(parents=True)
        (version / "kvsteer.conf").write_text(head + text)
        os.symlink(version.name, mount / "..tmp")
        os.rename(mount / "..tmp", mount / "..data")
    publish(1, harness.worker_conf([a]))
    os.symlink("..data/kvsteer.conf", mount / "kvsteer.conf")
    r = router(args=["-c", str(mount / "kvsteer.conf")])
    r.admin_path = str(admin)
    r.wait_workers("a")
    publish(2, harness.worker_conf([a, b]))
    r.wait_workers("a", "b")
    publish(3, harness.worker_conf([b]))
    wait_names(r, "b")


def test_c24_files_beside_it(router, worker):
    a, b = worker("a"), worker("b")
    r = router([a], keys=WATCH)
    folder = os.path.join(os.path.dirname(r.conf_path), "conf.d")
    os.mkdir(folder)
    path = os.path.join(folder, "b.conf")
    with open(path, "w") as f:
        f.write(f"[worker b]\nurl = {b.url}\n")
    r.wait_workers("a", "b")
    os.unlink(path)
    wait_names(r, "a")


def test_c24_keys_of_clients(tmp_path, router, worker):
    keys = tmp_path / "clients.keys"

    def write(*names):
        fresh = tmp_path / "fresh"
        fresh.write_text("".join(f"{hashlib.sha256(n.encode()).hexdigest()} t\n" for n in names))
        fresh.chmod(0o600)
        os.rename(fresh, keys)
    write("one")
    r = router([worker("w")], keys=WATCH + f"api_keys = {keys}\n")

    def status(key):
        return r.request(body=CHAT, headers={"Authorization": "Bearer " + key}).status
    assert (status("one"), status("two")) == (200, 401)
    write("two")
    harness.wait_until(lambda: (status("one"), status("two")) == (401, 200), "the new key")


@pytest.mark.parametrize("is_gone", [True, False])
def test_c24_a_file_that_is_missing_for_a_while(router, worker, is_gone):
    a, b = worker("a"), worker("b")
    r = router([a], keys=WATCH)
    os.rename(r.conf_path, r.conf_path + ".old")
    r.request(body=CHAT)
    if is_gone:
        r.write_conf(harness.worker_conf([a, b]))
        r.wait_workers("a", "b")
    else:
        os.rename(r.conf_path + ".old", r.conf_path)
        assert r.reload()[0]
    assert r.admin("GET", "status")[1]["counters"]["reloads_failed"] == 0
