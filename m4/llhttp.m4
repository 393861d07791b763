# KVSTEER_LLHTTP: where llhttp comes from. In this order:
#   --with-llhttp=DIR  C sources in DIR, DIR/src or DIR/share/llhttp (an unpacked llhttp
#                      release, or a prefix), header beside them or in an include folder
#   pkg-config libllhttp, version 9 or newer (an older library may be a lenient one)
#   /usr/share/llhttp  the C sources of Debian 12's node-llhttp
# Sets LLHTTP_CPPFLAGS (for every file that includes llhttp.h), LLHTTP_LIBS, and the
# conditional LLHTTP_SOURCES: whether src/local.mk compiles the wrappers.

AC_DEFUN([KVSTEER_LLHTTP_SOURCES], [
	kv_llhttp_src= kv_llhttp_inc=
	for kv_dir in "$1" "$1/src" "$1/share/llhttp"; do
		AS_IF([test -z "$kv_llhttp_src" && test -f "$kv_dir/llhttp.c" \
				&& test -f "$kv_dir/api.c" && test -f "$kv_dir/http.c"],
			[kv_llhttp_src=$kv_dir])
	done
	for kv_dir in "$kv_llhttp_src" "$kv_llhttp_src/../include" \
			"$kv_llhttp_src/../include/llhttp" "$kv_llhttp_src/../../include"; do
		AS_IF([test -z "$kv_llhttp_inc" && test -f "$kv_dir/llhttp.h"],
			[kv_llhttp_inc=`cd "$kv_dir" && pwd`])
	done
])

AC_DEFUN([KVSTEER_LLHTTP], [
	AC_ARG_WITH([llhttp], [AS_HELP_STRING([--with-llhttp=DIR],
		[llhttp C sources, instead of the system's library or sources])],
		[], [with_llhttp=])
	AS_CASE([$with_llhttp], [yes|no],
		[AC_MSG_ERROR([--with-llhttp needs a directory; llhttp is not optional])])
	kv_llhttp=
	AS_IF([test -z "$with_llhttp"],
		[PKG_CHECK_MODULES([LLHTTP], [libllhttp >= 9],
			[kv_llhttp=pkg-config
			LLHTTP_CPPFLAGS=$LLHTTP_CFLAGS],
			[with_llhttp=/usr/share/llhttp])])
	AS_IF([test -z "$kv_llhttp"], [
		KVSTEER_LLHTTP_SOURCES([$with_llhttp])
		AS_IF([test -z "$kv_llhttp_src" || test -z "$kv_llhttp_inc"],
			[AC_MSG_ERROR([no llhttp: install libllhttp-dev (or, on Debian 12, node-llhttp), or give its sources with --with-llhttp=DIR])])
		kv_llhttp=$kv_llhttp_src
		LLHTTP_CPPFLAGS="-isystem $kv_llhttp_inc -DLLHTTP_STRICT_MODE=1"
		LLHTTP_SRC_CPPFLAGS="-I$kv_llhttp_src"
		LLHTTP_LIBS=])
	AC_MSG_CHECKING([for llhttp])
	AC_MSG_RESULT([$kv_llhttp])
	AC_MSG_CHECKING([whether llhttp is strict])
	kv_save_cppflags=$CPPFLAGS
	CPPFLAGS="$CPPFLAGS $LLHTTP_CPPFLAGS"
	AC_PREPROC_IFELSE([AC_LANG_SOURCE([[
		#include <llhttp.h>
		#if LLHTTP_VERSION_MAJOR < 9 && LLHTTP_STRICT_MODE != 1
		#error lenient
		#endif
		]])],
		[AC_MSG_RESULT([yes])],
		[AC_MSG_RESULT([no])
		AC_MSG_ERROR([this llhttp is not strict, or llhttp.h cannot be read])])
	CPPFLAGS=$kv_save_cppflags
	AC_SUBST([LLHTTP_CPPFLAGS])
	AC_SUBST([LLHTTP_SRC_CPPFLAGS])
	AC_SUBST([LLHTTP_LIBS])
	AM_CONDITIONAL([LLHTTP_SOURCES], [test "$kv_llhttp" != pkg-config])
])
