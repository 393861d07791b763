#!/usr/bin/env bash
# Builds kvsteer and shows what it does: three simulated workers, the router in front of them, and
# conversations through the real OpenAI client, whose turns find their prompts cached.
#
#   sudo ./demo.sh       on Debian 12 or 13; root is needed only where packages are missing
#
# All output lies in _demo/; everything that was started is ended. Exits 1 where a turn missed its cache.
set -euo pipefail
cd "$(dirname "$0")"

top=$PWD
out=$top/_demo
build=$out/build
jobs=$(nproc)
export PYTHONDONTWRITEBYTECODE=1
exec </dev/null

pids=()

say()
{
	printf '\n=== %s\n' "$*"
}

# Ends what runs, newest first, and waits for each. A program that ends badly fails the demo.
stop_all()
{
	local i bad=0 status

	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
		kill "${pids[i]}" 2>/dev/null || true
		status=0
		wait "${pids[i]}" || status=$?
		if [ "$status" -ne 0 ]; then
			echo "process ${pids[i]} ended with status $status" >&2
			bad=1
		fi
	done
	pids=()
	return $bad
}

at_exit()
{
	local status=$?

	trap - EXIT
	stop_all || status=1
	if [ -n "${run-}" ]; then
		if [ "$status" -ne 0 ]; then
			echo "The logs:" >&2
			tail -n 20 "$run"/*.log >&2 || true
		fi
		rm -rf "$run"
	fi
	exit "$status"
}
trap at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start NAME PROGRAM ARGUMENT...: in the background, output to NAME.log.
start()
{
	local name=$1

	shift
	: >"$run/$name.log"
	"$@" >>"$run/$name.log" 2>&1 &
	pids+=("$!")
}

# address NAME: prints the first address at which the program just started says that it listens.
address()
{
	local log=$run/$1.log pid=${pids[-1]} i line

	for ((i = 0; i < 300; i++)); do
		line=$(grep -m 1 -o 'listening on http://[^ ]*' "$log" || true)
		if [ -n "$line" ]; then
			echo "${line#listening on }"
			return
		fi
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	echo "$1 does not listen" >&2
	return 1
}

say "what the build needs"
tests/build-deps python3 python3-venv
if [ -e config.status ]; then
	echo "the source folder holds a build of its own: run make distclean first" >&2
	exit 1
fi

say "building in _demo/"
mkdir -p "$build"
autoreconf -fi
if [ ! -e "$build/config.status" ] || [ configure -nt "$build/config.status" ]; then
	(cd "$build" && "$top/configure" -q)
fi
make -C "$build" -j "$jobs" -s kvsteerd kvsteer-engine

say "a Python with the OpenAI client"
if ! cmp -s tests/requirements.txt "$out/venv/requirements.txt"; then
	python3 -m venv --clear "$out/venv"
	grep -E '^(openai|httpx)\>' tests/requirements.txt |
		"$out/venv/bin/pip" install -q --disable-pip-version-check -r /dev/stdin
	cp tests/requirements.txt "$out/venv/requirements.txt"
fi

say "three workers and the router"
run=$(mktemp -d)
cat >"$run/kvsteer.conf" <<END
[router]
listen = 127.0.0.1:0
metrics_listen = 127.0.0.1:0
admin_socket = $run/admin.sock
expose_worker = on
access_log = off

[pool default]
policy = cache_aware
balance_abs_threshold = 8
END
for name in w1 w2 w3; do
	start "$name" "$build/kvsteer-engine" --port 0 --model demo \
		--sim-prefill-rate 4000 --sim-decode-rate 100
	url=$(address "$name")
	printf '\n[worker %s]\nurl = %s\n' "$name" "$url" >>"$run/kvsteer.conf"
	echo "$name: $url (simulated: 4000 prompt tokens/s, 100 new tokens/s for each stream)"
done
start kvsteerd "$build/kvsteerd" -c "$run/kvsteer.conf"
router=$(address kvsteerd)
echo "kvsteerd: $router"

"$out/venv/bin/python" tests/e2e/demo_client.py "$router"

say "stopping"
stop_all
echo "all ended cleanly"
