# Builds libzero (the library) and zerotrain (the trainer).
#
#   make              build/zerotrain, build/libzero.a, build/libzero.so, examples; for pkg-config and CMake what they read
#   make check        every test             make bench      speed, as ratios
#   make lint         clang-format, cppcheck, clang's warnings
#   make install PREFIX=/usr/local DESTDIR=        make uninstall        make clean
#
# Options: V=1 full commands · WERROR=1 warnings are errors · SANITIZE=1 AddressSanitizer and UBSan, in build/sanitize
#          CC, CFLAGS, LDFLAGS as usual · CUDA=0 leaves CUDA out though nvcc is there · STATIC=1 links iniparser,
#          jansson and xxhash statically, for machines that lack them

VERSION   := 0.1.0
SOVERSION := 0
PREFIX    ?= /usr/local
CC        := $(if $(filter default,$(origin CC)),gcc,$(CC))
CFLAGS    ?= -O3 -g
SANITIZE  ?= 0
WERROR    ?= 0
STATIC    ?= 0
BUILD     ?= build$(if $(filter 1,$(SANITIZE)),/sanitize)

ifneq ($(V),1)
Q := @
say = @printf '  %-7s %s\n' $(1) $(2);
endif

# ---- what this machine has ---------------------------------------------------------------------------------------
MPI_CFLAGS := $(shell mpicc --showme:compile 2>/dev/null)
MPI_LIBS   := $(shell mpicc --showme:link 2>/dev/null)
BLAS_CFLAGS := $(shell pkg-config --cflags openblas 2>/dev/null)
ifeq ($(strip $(MPI_LIBS)),)
ifeq ($(filter clean uninstall,$(MAKECMDGOALS)),)
$(error Open MPI's mpicc is not on PATH: run launch/quickstart, or install libopenmpi-dev and openmpi-bin)
endif
endif
# iniparser.h stands in a folder of its own on Debian and Ubuntu.
INI_CFLAGS := $(if $(wildcard /usr/include/iniparser/iniparser.h),-I/usr/include/iniparser)
STATIC_LIB  = $(if $(filter 1,$(STATIC)),-l:lib$(1).a,-l$(1))

_comma := ,
# hwloc finds the cores near a GPU, for offload's threads. Without it they run where the system puts them.
HWLOC_LIBS := $(shell pkg-config --libs hwloc 2>/dev/null)
HWLOC_CFLAGS := $(if $(HWLOC_LIBS),-DZERO_HAVE_HWLOC=1 $(shell pkg-config --cflags hwloc 2>/dev/null))
# CUDA: nvcc on PATH or in its usual place. What it builds runs on machines without a GPU or driver too: the runtime is
# linked statically and looks for the driver when it is first called.
CUDA ?= 1
NVCC := $(if $(filter 0,$(CUDA)),,$(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc)))
ifneq ($(NVCC),)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# A distribution's package has headers and libraries where compilers look anyway.
CUDA_CFLAGS := -DZERO_HAVE_CUDA=1 $(addprefix -isystem ,$(filter-out /usr/include,$(patsubst %/cuda_runtime_api.h,%,\
                 $(firstword $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h)))))
CUDA_LIBS := $(addprefix -L,$(patsubst %/libcudart_static.a,%,$(firstword \
                 $(wildcard $(CUDA_HOME)/lib64/libcudart_static.a $(CUDA_HOME)/lib/libcudart_static.a)))) \
             -lnccl -lcudart_static -lrt -ldl -lpthread
# NCCL carries bulk data between GPUs and is a must; cuDNN is the faster of two ways to compute attention.
finds = $(shell printf '\043include <$(1)>\n' | $(CC) $(CUDA_CFLAGS) -fsyntax-only -x c - 2>/dev/null && echo yes)
ifeq ($(call finds,nccl.h),)
NVCC :=
CUDA_CFLAGS :=
CUDA_LIBS :=
CUDA_LEFT_OUT := nccl.h was not found: install NCCL's development files
else
HAVE_CUDNN := $(call finds,cudnn.h)
CUDA_CFLAGS += $(if $(HAVE_CUDNN),-DZERO_HAVE_CUDNN=1)
CUDA_MODEL_LIBS := -lcublasLt $(if $(HAVE_CUDNN),-lcudnn)
endif
endif
ifneq ($(NVCC),)
# Machine code for A100 and H100/H200, PTX for what comes after them; IEEE arithmetic as written (see FLOAT below); no
# C++ runtime: the only statics are handles in nvcc's stubs, of which two threads would make the same.
NVCC_FLAGS := -std=c++17 -O3 -ftz=false -prec-div=true -prec-sqrt=true --fmad=false -gencode arch=compute_80,code=sm_80 \
              -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 \
              -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wextra \
              $(if $(filter 1,$(WERROR)),-Werror all-warnings)
endif
ifeq ($(filter clean uninstall install,$(MAKECMDGOALS))$(MAKE_RESTARTS),)
$(info $(if $(NVCC),  CUDA    $(CUDA_HOME)$(shell $(NVCC) --version | sed -n 's/.*\(release [0-9.]*\).*/, \1/p')$(_comma) NCCL$(if $(HAVE_CUDNN),$(_comma) cuDNN),\
       $(if $(filter 0,$(CUDA)),  CUDA    left out (CUDA=0),  CUDA    left out: $(or $(CUDA_LEFT_OUT),no nvcc on PATH or in /usr/local/cuda))))
endif

ifeq ($(filter clean uninstall install,$(MAKECMDGOALS))$(MAKE_RESTARTS),)
$(info $(if $(HWLOC_LIBS),  hwloc   $(shell pkg-config --modversion hwloc),  hwloc   left out: libhwloc-dev is not installed$(_comma) threads of offload are not bound near their GPU))
endif

# Numbers get their names from enums here, also those that floats are multiplied with: clang 18 warns of that.
WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes \
            -Wvla -Wundef -Wpointer-arith$(if $(findstring clang,$(CC)), -Wno-enum-float-conversion) \
            $(if $(filter 1,$(WERROR)),-Werror)
# IEEE arithmetic as written: the promise of equal bits rests on these.
FLOAT    := -ffp-contract=off -fno-math-errno -fno-trapping-math
SANFLAGS := $(if $(filter 1,$(SANITIZE)),-fsanitize=address -fsanitize=undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
CPPFLAGS += -D_GNU_SOURCE -DZERO_VERSION_STRING='"$(VERSION)"' -Isrc -I. $(INI_CFLAGS) $(HWLOC_CFLAGS) $(CUDA_CFLAGS)
ALL_CFLAGS = -std=c17 $(CFLAGS) $(FLOAT) $(WARNINGS) $(SANFLAGS) -fopenmp -fPIC -fvisibility=hidden -pthread
ALL_LDFLAGS = $(LDFLAGS) $(SANFLAGS) -fopenmp -pthread

# ---- sources -----------------------------------------------------------------------------------------------------
SHARD_ISA  := adam reduce step cast philox poison shard_table
SHARD_CUDA := $(if $(NVCC),adam.cu reduce.cu step.cu cast.cu philox.cu poison.cu shard_cuda)
MODEL_CUDA := $(if $(NVCC),attention.cu column_sum.cu elementwise.cu embed.cu gelu.cu layernorm.cu loss.cu rmsnorm.cu rope.cu \
              swiglu.cu gemm_cuda linear_cuda loss_cuda model_cuda recording_cuda $(if $(HAVE_CUDNN),attention_cudnn))
MODEL_ISA  := sgemm linear attention layernorm rmsnorm rope gelu swiglu loss embed model_table
CUDA_SRC   := src/zero/device_cuda.c comm/nccl.c comm/copy_engine.c comm/peer_window.c
LIB_SRC    := $(filter-out $(CUDA_SRC),$(wildcard src/zero/*.c comm/*.c)) kernels/shard_cpu.c $(if $(NVCC),$(CUDA_SRC))
MODEL_SRC  := kernels/model_cpu.c kernels/model_select.c
TRAIN_SRC  := $(wildcard src/train/*.c)
EXAMPLES   := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c)) \
              $(if $(NVCC),$(patsubst examples/%.cu,$(BUILD)/examples/%_cuda,$(wildcard examples/*.cu)))
TESTS      := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
MPI_TESTS  := $(patsubst tests/mpi/%.c,$(BUILD)/tests/mpi/%,$(wildcard tests/mpi/*.c))
BENCHES    := $(patsubst tests/bench/%.c,$(BUILD)/tests/bench/%,$(wildcard tests/bench/*.c))

# CPU kernels are compiled once per instruction set (kernels/isa.h).
ISAS := scalar
ISA_FLAGS_scalar :=
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine)),)
ISAS += avx2 avx512
ISA_FLAGS_avx2   := -mavx2 -mfma -mf16c -mbmi2
ISA_FLAGS_avx512 := $(ISA_FLAGS_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
CPPFLAGS += -DZERO_HAVE_X86=1
endif
isa_objects = $(foreach isa,$(ISAS),$(patsubst %,$(BUILD)/kernels/%.$(isa).o,$(1)))

LIB_OBJ   := $(LIB_SRC:%.c=$(BUILD)/%.o) $(call isa_objects,$(SHARD_ISA)) $(SHARD_CUDA:%=$(BUILD)/kernels/%.o)
MODEL_OBJ := $(MODEL_SRC:%.c=$(BUILD)/%.o) $(call isa_objects,$(MODEL_ISA)) $(MODEL_CUDA:%=$(BUILD)/kernels/%.o)
TRAIN_OBJ := $(TRAIN_SRC:%.c=$(BUILD)/%.o)
TRAIN_LIB_OBJ := $(filter-out %/main.o,$(TRAIN_OBJ))

LIB_LIBS   := $(MPI_LIBS) $(call STATIC_LIB,jansson) $(call STATIC_LIB,xxhash) $(HWLOC_LIBS) $(CUDA_LIBS) -lm -ldl
TRAIN_LIBS := $(LIB_LIBS) $(call STATIC_LIB,iniparser) $(CUDA_MODEL_LIBS) -lopenblas

# What objects are built with. Where it changes (another compiler, a CUDA toolkit that has come since), they are built
# again; WERROR makes no difference to them. `make install` takes what is there.
SETTINGS := $(strip $(subst -Werror,,$(subst -Werror all-warnings,,$(CC) $(CPPFLAGS) $(MPI_CFLAGS) $(BLAS_CFLAGS) \
            $(ALL_CFLAGS) $(LDFLAGS) $(TRAIN_LIBS) $(NVCC) $(NVCC_FLAGS))))
ifeq ($(filter clean uninstall $(if $(wildcard $(BUILD)/settings),install),$(MAKECMDGOALS)),)
ifneq ($(strip $(file <$(BUILD)/settings)),$(SETTINGS))
$(shell mkdir -p $(BUILD))
$(file >$(BUILD)/settings,$(SETTINGS))
endif
endif

# ---- targets -----------------------------------------------------------------------------------------------------
.PHONY: all check bench lint install uninstall clean objects tests tests-objects cuda-objects gpu-tests
.DELETE_ON_ERROR:
.SECONDARY:
all: $(BUILD)/zerotrain $(BUILD)/libzero.a $(BUILD)/libzero.so $(BUILD)/zero.pc $(BUILD)/zero-config-version.cmake $(EXAMPLES)
objects: $(LIB_OBJ) $(MODEL_OBJ) $(TRAIN_OBJ)
tests-objects: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/*.c tests/mpi/*.c tests/bench/*.c examples/*.c))
cuda-objects: $(patsubst %,$(BUILD)/%.o,$(wildcard kernels/*.cu comm/*.cu examples/*.cu))
tests: all $(TESTS) $(MPI_TESTS)

$(BUILD)/libzero.a: $(LIB_OBJ)
	$(call say,AR,$@) rm -f $@; ar rcs $@ $^
$(BUILD)/libzero.so.$(VERSION): $(LIB_OBJ)
	$(call say,LINK,$@) $(CC) -shared -Wl,-soname,libzero.so.$(SOVERSION) -Wl,--no-undefined -Wl,--exclude-libs,ALL -o $@ $^ $(ALL_LDFLAGS) $(LIB_LIBS)
$(BUILD)/libzero.so.$(SOVERSION): $(BUILD)/libzero.so.$(VERSION)
	$(Q)ln -sf $(<F) $@
$(BUILD)/libzero.so: $(BUILD)/libzero.so.$(SOVERSION)
	$(Q)ln -sf $(<F) $@
$(BUILD)/zerotrain: $(TRAIN_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	$(call say,LINK,$@) $(CC) -o $@ $^ $(ALL_LDFLAGS) $(TRAIN_LIBS)
$(BUILD)/zero.pc: Makefile
	$(call say,GEN,$@) printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' \
	    'Name: zero' 'Description: ZeRO/FSDP sharding for C training codes' 'Version: $(VERSION)' \
	    'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -lzero' \
	    'Libs.private: $(LIB_LIBS) -lgomp -lpthread' > $@

$(BUILD)/zero-config-version.cmake: Makefile
	$(call say,GEN,$@) printf '%s\n' 'set(PACKAGE_VERSION $(VERSION))' \
	    'if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)' '    set(PACKAGE_VERSION_COMPATIBLE TRUE)' 'endif()' \
	    'if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)' '    set(PACKAGE_VERSION_EXACT TRUE)' 'endif()' > $@

$(BUILD)/%.o: %.c $(BUILD)/settings
	@mkdir -p $(@D)
	$(call say,CC,$<) $(CC) $(CPPFLAGS) $(MPI_CFLAGS) $(BLAS_CFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
define isa_rule
$(BUILD)/kernels/%.$(1).o: kernels/%.c $(BUILD)/settings
	@mkdir -p $$(@D)
	$$(call say,CC,'$$< ($(1))') $$(CC) $$(CPPFLAGS) $$(BLAS_CFLAGS) $$(ALL_CFLAGS) $$(ISA_FLAGS_$(1)) \
	    -DZERO_ISA_NAME=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call isa_rule,$(isa))))
$(BUILD)/%.cu.o: %.cu $(BUILD)/settings
	@mkdir -p $(@D)
	$(call say,NVCC,$<) $(NVCC) $(NVCC_FLAGS) $(CPPFLAGS) -MMD -MP -c -o $@ $<

# An example is built as a user would build it: one header, one library.
$(BUILD)/examples/%: examples/%.c src/zero.h $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,CC,$<) $(CC) -std=c17 $(CFLAGS) $(WARNINGS) $(SANFLAGS) -Isrc -o $@ $< $(BUILD)/libzero.a $(ALL_LDFLAGS) $(LIB_LIBS)
# One with kernels takes the library's flags of nvcc, which need no C++ runtime; test_install builds it as a user would.
$(BUILD)/examples/%_cuda: $(BUILD)/examples/%.cu.o $(BUILD)/libzero.a
	$(call say,LINK,$@) $(CC) -o $@ $^ $(ALL_LDFLAGS) $(LIB_LIBS)

TEST_COMMON := $(patsubst %,$(BUILD)/tests/%.o,support fp64_model gpt2_fp64 llama_fp64 allocations async_device)
CHECK_LIBS = $(if $(filter 1,$(STATIC)),-l:libcheck_pic.a -l:libsubunit.a -lrt -lm,$(shell pkg-config --libs check))
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_COMMON) $(TRAIN_LIB_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) -o $@ $^ $(ALL_LDFLAGS) $(TRAIN_LIBS) $(CHECK_LIBS)

# Tests and measurements that need a GPU: programs that run on a machine with little more than its driver.
GPU_TESTS := $(if $(NVCC),$(patsubst tests/gpu/%.c,$(BUILD)/tests/gpu/%,$(filter-out %/kernel_times.c,\
               $(wildcard tests/gpu/*.c))) $(if $(call finds,cupti.h),$(BUILD)/tests/gpu/kernel_times.so))
gpu-tests: $(GPU_TESTS)
$(BUILD)/tests/gpu/%_model_cuda: $(BUILD)/tests/gpu/%_model_cuda.o $(MODEL_OBJ) $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) -o $@ $^ $(ALL_LDFLAGS) -Wl,--as-needed $(TRAIN_LIBS)
$(BUILD)/tests/gpu/%_collectives: $(BUILD)/tests/gpu/%_collectives.o $(BUILD)/tests/gpu/collectives.cu.o $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) -o $@ $^ $(ALL_LDFLAGS) -Wl,--as-needed $(LIB_LIBS) $(CUDA_MODEL_LIBS)
# zerotrain itself, whose calls of CUDA come to count_calls.c first.
$(BUILD)/tests/gpu/count_calls: $(BUILD)/tests/gpu/count_calls.o $(TRAIN_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) -o $@ $^ $(ALL_LDFLAGS) -Wl,--wrap=cudaGetDriverEntryPointByVersion \
	    $$(sed -nE 's/^ *X.([A-Za-z_]+),.*/-Wl,--wrap=\1/p' $(<:$(BUILD)/%.o=%.c)) -Wl,--as-needed $(TRAIN_LIBS)
# What CUDA's driver loads into zerotrain.
$(BUILD)/tests/gpu/kernel_times.so: $(BUILD)/tests/gpu/kernel_times.o
	$(call say,LINK,$@) $(CC) -shared -Wl,--no-undefined -o $@ $^ $(LDFLAGS) -ldl
$(BUILD)/tests/gpu/%: $(BUILD)/tests/gpu/%.o $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) -o $@ $^ $(ALL_LDFLAGS) -Wl,--as-needed $(LIB_LIBS)

check: tests
	$(Q)tests/run-all $(BUILD)
bench: all $(BENCHES)
	$(Q)tests/bench/run-all $(BUILD)
lint:
	$(Q)tests/lint

install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/lib/cmake/zero \
	    $(DESTDIR)$(PREFIX)/include
	install -m 755 $(BUILD)/zerotrain $(DESTDIR)$(PREFIX)/bin/
	install -m 644 $(BUILD)/libzero.a $(DESTDIR)$(PREFIX)/lib/
	install -m 755 $(BUILD)/libzero.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/
	ln -sf libzero.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libzero.so.$(SOVERSION)
	ln -sf libzero.so.$(SOVERSION) $(DESTDIR)$(PREFIX)/lib/libzero.so
	sed 's|^prefix=.*|prefix=$(PREFIX)|' $(BUILD)/zero.pc > $(DESTDIR)$(PREFIX)/lib/pkgconfig/zero.pc
	chmod 644 $(DESTDIR)$(PREFIX)/lib/pkgconfig/zero.pc
	install -m 644 src/zero-config.cmake $(BUILD)/zero-config-version.cmake $(DESTDIR)$(PREFIX)/lib/cmake/zero/
	install -m 644 src/zero.h $(DESTDIR)$(PREFIX)/include/
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/zerotrain $(DESTDIR)$(PREFIX)/lib/libzero.a $(DESTDIR)$(PREFIX)/lib/libzero.so* \
	    $(DESTDIR)$(PREFIX)/lib/pkgconfig/zero.pc $(DESTDIR)$(PREFIX)/include/zero.h
	rm -rf $(DESTDIR)$(PREFIX)/lib/cmake/zero
clean:
	rm -rf build

-include $(shell [ -d $(BUILD) ] && find $(BUILD) -name '*.d')
