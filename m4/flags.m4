# kvsteer compiler and linker flags: each is probed, so that an older or another compiler
# builds with what it knows.

# KVSTEER_CFLAG(VARIABLE, FLAG...): appends each FLAG that compiles and links without a warning.
AC_DEFUN([KVSTEER_CFLAG], [
	for kv_flag in $2; do
		AC_MSG_CHECKING([whether $CC takes $kv_flag])
		kv_save_cflags=$CFLAGS
		CFLAGS="$CFLAGS -Werror $kv_flag"
		AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
			[AC_MSG_RESULT([yes]); $1="$$1 $kv_flag"],
			[AC_MSG_RESULT([no])])
		CFLAGS=$kv_save_cflags
	done
])

# KVSTEER_LDFLAG(VARIABLE, FLAG...): the same for the linker (with -fPIE, for -pie).
AC_DEFUN([KVSTEER_LDFLAG], [
	for kv_flag in $2; do
		AC_MSG_CHECKING([whether the linker takes $kv_flag])
		kv_save_cflags=$CFLAGS
		kv_save_ldflags=$LDFLAGS
		CFLAGS="$CFLAGS -fPIE"
		LDFLAGS="$LDFLAGS $kv_flag"
		AC_LINK_IFELSE([AC_LANG_PROGRAM([], [])],
			[AC_MSG_RESULT([yes]); $1="$$1 $kv_flag"],
			[AC_MSG_RESULT([no])])
		CFLAGS=$kv_save_cflags
		LDFLAGS=$kv_save_ldflags
	done
])

# KVSTEER_HARDENING: sets HARDEN_CFLAGS, HARDEN_CPPFLAGS and HARDEN_LDFLAGS.
# _FORTIFY_SOURCE needs optimisation, disturbs the sanitizers, and is left alone where the
# packager's flags set it already.
AC_DEFUN([KVSTEER_HARDENING], [
	HARDEN_CFLAGS= HARDEN_CPPFLAGS= HARDEN_LDFLAGS=
	KVSTEER_CFLAG([HARDEN_CFLAGS], [-fstack-protector-strong -fstack-clash-protection \
		-fcf-protection -fPIE])
	KVSTEER_LDFLAG([HARDEN_LDFLAGS], [-pie -Wl,-z,relro -Wl,-z,now])
	AC_MSG_CHECKING([whether to define _FORTIFY_SOURCE])
	kv_fortify=no
	case " $CFLAGS" in
	*" -O0"*) ;;
	*" -O"*) kv_fortify=yes ;;
	esac
	case "$CPPFLAGS $CFLAGS" in *_FORTIFY_SOURCE*) kv_fortify=no ;; esac
	AS_IF([test -n "$SAN_CFLAGS"], [kv_fortify=no])
	AS_IF([test $kv_fortify = yes],
		[HARDEN_CPPFLAGS="-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2"])
	AC_MSG_RESULT([$kv_fortify])
	AC_SUBST([HARDEN_CFLAGS])
	AC_SUBST([HARDEN_CPPFLAGS])
	AC_SUBST([HARDEN_LDFLAGS])
])
