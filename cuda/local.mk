# CUDA kernels, only under --with-cuda. List cuda/foo.cu in the _SOURCES of the backend's
# library under "if WITH_CUDA". automake tracks no headers of .cu files: write them by hand.

SUFFIXES = .cu
.cu.o:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(NVCC) $(NVCCFLAGS) -I$(srcdir) -c -o $@ $<
