# KVSTEER_CUDA: --with-cuda[=DIR] looks for nvcc. Without the option nothing of CUDA is
# looked for, and nothing in the router ever needs it.
AC_DEFUN([KVSTEER_CUDA], [
	AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda@<:@=DIR@:>@],
		[build the CUDA backend with the toolkit in DIR (default: not built)])],
		[], [with_cuda=no])
	kv_cuda_path=$PATH
	AS_CASE([$with_cuda],
		[no], [],
		[yes], [kv_cuda_path=$PATH:/usr/local/cuda/bin],
		[kv_cuda_path=$with_cuda/bin])
	AS_IF([test "$with_cuda" != no], [
		AC_PATH_PROG([NVCC], [nvcc], [], [$kv_cuda_path])
		AS_IF([test -z "$NVCC"], [AC_MSG_ERROR([--with-cuda: no nvcc in $kv_cuda_path])])
		CUDA_LIBS="-lcudart -lstdc++"])
	AC_SUBST([CUDA_LIBS])
	AM_CONDITIONAL([WITH_CUDA], [test "$with_cuda" != no])
])
