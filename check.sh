#!/usr/bin/env bash
# Installs what the tests need, builds with warnings as errors, and runs every test.
#
#   sudo ./check.sh      everything: release build, sanitizers, end-to-end tests, distcheck
#   ./check.sh --quick   for developers: one release build, its tests and the end-to-end tests;
#                        installs no packages of the system
#
# Both end with kvsteerd before two servers of llama.cpp (tests/real), where pip can install them.
#
# All output lies in _build/. The end shows the closing lines of the test runners themselves.
set -euo pipefail
cd "$(dirname "$0")"

quick=no
case ${1-} in
'') ;;
--quick) quick=yes ;;
*)
	echo "usage: check.sh [--quick]" >&2
	exit 2
	;;
esac

top=$PWD
out=$top/_build
jobs=$(nproc)
export PYTHONDONTWRITEBYTECODE=1
exec </dev/null

say()
{
	printf '\n=== %s (%d s)\n' "$*" "$SECONDS"
}

# configure_in NAME OPTION...: an out-of-tree build folder.
configure_in()
{
	local dir=$out/$1

	shift
	mkdir -p "$dir"
	(cd "$dir" && "$top/configure" -q "$@")
}

# make_check NAME: builds all, runs the tests, and keeps the runners' closing lines.
make_check()
{
	local dir=$out/$1

	make -C "$dir" -j "$jobs" -s all
	make -C "$dir" -j "$jobs" -s check VERBOSE=1
	closing_lines "$dir" >"$out/$1.closing"
}

# closing_lines DIR: each Check program's last line. A program that printed none did not run.
closing_lines()
{
	local test log

	for test in tests/unit/check_*.c; do
		[ -e "$test" ] || continue
		log=$1/${test%.c}.log
		if ! grep -h '^[0-9]*%: Checks: ' "$log"; then
			echo "$log: no result of Check" >&2
			return 1
		fi
	done
}

# have_tests PATTERN: whether an end-to-end test file holds PATTERN.
have_tests()
{
	compgen -G 'tests/e2e/test_*.py' >/dev/null && grep -lqE "$1" tests/e2e/test_*.py
}

# end_to_end NAME ARGUMENT...: pytest against the programs of a build. A sanitizer's report
# fails the run even where no test noticed it.
end_to_end()
{
	local name=$1 dir=$out/$1 reports=$out/$1/reports

	shift
	rm -rf "$reports"
	mkdir -p "$reports"
	KVSTEER_BUILDDIR=$dir \
	ASAN_OPTIONS=log_path=$reports/asan \
	UBSAN_OPTIONS=print_stacktrace=1:log_path=$reports/ubsan \
	TSAN_OPTIONS=second_deadlock_stack=1:log_path=$reports/tsan \
		"${launcher[@]}" "$out/venv/bin/python" -m pytest -p no:cacheprovider \
		-n "$workers" "$@" tests/e2e 2>&1 | tee "$out/$name.pytest"
	if compgen -G "$reports/*" >/dev/null; then
		cat "$reports"/*
		echo "sanitizer reports in $reports" >&2
		return 1
	fi
}

# real_engine BUILD: kvsteerd before servers of llama.cpp. Where they cannot be had, one line says
# why. pip gives up soon: a machine without a network is no fault.
real_engine()
{
	local log=$out/real.log rc=0

	PIP_RETRIES=1 PIP_DEFAULT_TIMEOUT=10 \
		tests/real/llamacpp "$out/$1" --short --env "$out/real-llamacpp" 2>&1 |
		tee "$log" || rc=$?
	case $rc in
	0) tail -n 1 "$log" >"$out/llamacpp.real" ;;
	77) echo "skipped: $(tail -n 1 "$log")" | tee "$out/llamacpp.real" ;;
	*)
		echo "kvsteerd before llama.cpp: see $log" >&2
		return 1
		;;
	esac
}

# The fuzz targets look for new inputs for a moment: fuzz_conn, and three others, which take turns
# from day to day. Where clang and its libFuzzer are not installed, one line says so.
fuzz()
{
	tests/fuzz/search 15 conn || [ $? = 77 ]
	tests/fuzz/search 15 --rota 3 || [ $? = 77 ]
	tests/fuzz/coverage || [ $? = 77 ]
}

# Some kernels lay memory out in a way that a thread-sanitized program cannot start in; without
# address space randomisation it can.
choose_tsan_launcher()
{
	local probe=$out/tsan-probe

	echo 'int main(void) { return 0; }' |
		gcc -fsanitize=thread -fPIE -pie -x c -o "$probe" -
	launcher=()
	if ! "$probe" 2>/dev/null; then
		launcher=(setarch "$(uname -m)" -R)
		"${launcher[@]}" "$probe"
	fi
}

launcher=()
workers=$((jobs < 2 ? 2 : jobs > 4 ? 4 : jobs))

say "tools"
if [ $quick = no ]; then
	tests/build-deps python3 python3-venv mandoc shellcheck systemd util-linux
fi
if [ -e config.status ]; then
	echo "the source folder holds a build of its own: run make distclean first" >&2
	exit 1
fi
mkdir -p "$out"
if ! cmp -s tests/requirements.txt "$out/venv/requirements.txt"; then
	python3 -m venv --clear "$out/venv"
	"$out/venv/bin/pip" install -q --disable-pip-version-check -r tests/requirements.txt
	cp tests/requirements.txt "$out/venv/requirements.txt"
fi
rm -f "$out"/*.closing "$out"/*.pytest "$out"/*.real
autoreconf -fi

say "release build, warnings are errors"
configure_in release --enable-werror
make_check release

say "a real engine: llama.cpp"
real_engine release

if [ $quick = yes ]; then
	if have_tests '^'; then
		say "end-to-end tests"
		end_to_end release
	fi
else
	say "address and undefined behaviour sanitizers"
	configure_in asan --enable-sanitizers=address,undefined
	make_check asan
	if have_tests '^'; then
		say "end-to-end tests, sanitized"
		end_to_end asan
	fi
	if have_tests 'mark\.tsan'; then
		say "end-to-end tests, thread sanitizer"
		configure_in tsan --enable-sanitizers=thread
		make -C "$out/tsan" -j "$jobs" -s all
		choose_tsan_launcher
		end_to_end tsan -m tsan
		launcher=()
	fi
	say "fuzz targets"
	fuzz
	say "distcheck"
	make -C "$out/release" -j "$jobs" -s distcheck VERBOSE=1 \
		DISTCHECK_CONFIGURE_FLAGS='CFLAGS=-O1' >"$out/distcheck.log" 2>&1 || {
		tail -n 100 "$out/distcheck.log"
		exit 1
	}
	tail -n 4 "$out/distcheck.log"
fi

say "all passed"
for closing in "$out"/*.closing; do
	echo "Check programs, $(basename "$closing" .closing) build:"
	cat "$closing"
done
for build in tsan release asan; do
	if [ -e "$out/$build.pytest" ]; then
		echo "End-to-end tests, $build build:"
		tail -n 1 "$out/$build.pytest"
	fi
done
echo "kvsteerd before llama.cpp:"
cat "$out/llamacpp.real"
