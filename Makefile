# Builds libzero (the library) and zerotrain (the trainer).
#
#   make              build/zerotrain, build/libzero.a, build/libzero.so, examples, files for pkg-config and CMake
#   make check        runs every test        make bench      measures speed, as ratios
#   make lint         clang-format, cppcheck, clang's warnings
#   make install PREFIX=/usr/local DESTDIR=        make uninstall        make clean
#   make compile_commands.json                     for clangd and other tools that read C
#
# Options: V=1 shows full commands · WERROR=1 makes warnings errors · SANITIZE=1 builds with AddressSanitizer and UBSan in
#          build/sanitize, SANITIZE=thread BUILD=DIR with ThreadSanitizer · CUDA=0 leaves CUDA out even if there is nvcc
#          CC, CFLAGS, CPPFLAGS, LDFLAGS as usual: they are added after the Makefile's own
#          STATIC=1 links iniparser, jansson, xxhash, PCRE2 and utf8proc statically
#          HARDEN=0 leaves out stack protector, fortified libc calls, PIE and early binding
#          BINDIR, LIBDIR, INCLUDEDIR, DATADIR, MANDIR: folders of `make install`, by default below PREFIX
# `make install` without options installs the last build, with its options.

VERSION   := 0.1.0
SOVERSION := 0
PREFIX    ?= /usr/local
BINDIR    ?= $(PREFIX)/bin
LIBDIR    ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR   ?= $(PREFIX)/share
MANDIR    ?= $(DATADIR)/man
BUILD     ?= build$(if $(filter 1,$(SANITIZE)),/sanitize)

# The options of the last build, kept in BUILD/options. `make install` without any of them on its command line reads them
# from there, so it installs that build even if root has another PATH or environment.
OPTIONS   := CC CFLAGS CPPFLAGS LDFLAGS CUDA NVCC STATIC HARDEN
INSTALLS_WHAT_IS_THERE := $(if $(filter install,$(MAKECMDGOALS)),$(if $(filter-out install,$(MAKECMDGOALS))$(strip \
    $(foreach option,$(OPTIONS),$(findstring command,$(origin $(option))))),,$(wildcard $(BUILD)/options)))
ifneq ($(INSTALLS_WHAT_IS_THERE),)
include $(BUILD)/options
endif
CC        := $(if $(filter default,$(origin CC)),gcc,$(CC))
CFLAGS    ?= -O3 -g
SANITIZE  ?= 0
WERROR    ?= 0
STATIC    ?= 0
HARDEN    ?= 1

ifneq ($(V),1)
Q := @
say = @printf '  %-7s %s\n' $(1) $(2);
endif

# ---- hardening: a defect ends the program instead of serving an attacker ------------------------------------------
# Fortified calls need optimization, and sanitizers check them better. Level 3 also knows sizes computed at run time;
# compilers and C libraries before 2022 have level 2. Some distributions' gcc define a level, hence -U.
HARDEN_CFLAGS :=
HARDEN_LDFLAGS :=
ifeq ($(HARDEN),1)
ifneq ($(SANITIZE),1)
accepts = $(shell printf '\043include <string.h>\n' | $(CC) $(1) -Werror -fsyntax-only -x c - 2>/dev/null && echo yes)
HARDEN_CFLAGS := -fstack-protector-strong $(if $(call accepts,-fcf-protection),-fcf-protection)
ifneq ($(filter -O1 -O2 -O3 -Os -Og -Ofast,$(lastword $(filter -O%,$(CFLAGS)))),)
HARDEN_CFLAGS += -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$(if $(call accepts,-O1 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3),3,2)
endif
HARDEN_LDFLAGS := -Wl,-z,relro,-z,now,-z,noexecstack
endif
endif

# ---- libraries of this machine ---------------------------------------------------------------------------------------
MPI_CFLAGS := $(shell mpicc --showme:compile 2>/dev/null)
MPI_LIBS   := $(shell mpicc --showme:link 2>/dev/null)
BLAS_CFLAGS := $(shell pkg-config --cflags openblas 2>/dev/null)
ifeq ($(strip $(MPI_LIBS)),)
ifeq ($(filter clean uninstall,$(MAKECMDGOALS)),)
$(error Open MPI's mpicc is not on PATH: run launch/quickstart, or install libopenmpi-dev and openmpi-bin)
endif
endif
# iniparser.h is in a folder of its own on Debian and Ubuntu.
INI_CFLAGS := $(if $(wildcard /usr/include/iniparser/iniparser.h),-I/usr/include/iniparser)
STATIC_LIB  = $(if $(filter 1,$(STATIC)),-l:lib$(1).a,-l$(1))

_comma := ,
# hwloc finds the cores near a GPU for offload's threads. Without it the system places them.
HWLOC_LIBS := $(shell pkg-config --libs hwloc 2>/dev/null)
HWLOC_CFLAGS := $(if $(HWLOC_LIBS),-DZERO_HAVE_HWLOC=1 $(shell pkg-config --cflags hwloc 2>/dev/null))
# PCRE2 splits text into words for tokenizer.json. Without it zerotrain generates from models of bytes alone.
PCRE2_LIBS := $(if $(filter 1,$(STATIC)),$(if $(shell pkg-config --libs libpcre2-8 2>/dev/null),-l:libpcre2-8.a),$(shell pkg-config --libs libpcre2-8 2>/dev/null))
PCRE2_CFLAGS := $(if $(PCRE2_LIBS),-DZERO_HAVE_PCRE2=1 $(shell pkg-config --cflags libpcre2-8 2>/dev/null))
# utf8proc brings text into normal form C, which Qwen's tokenizers want.
UTF8PROC_LIBS := $(if $(filter 1,$(STATIC)),$(if $(shell pkg-config --libs libutf8proc 2>/dev/null),-l:libutf8proc.a),$(shell pkg-config --libs libutf8proc 2>/dev/null))
UTF8PROC_CFLAGS := $(if $(UTF8PROC_LIBS),-DZERO_HAVE_UTF8PROC=1 $(shell pkg-config --cflags libutf8proc 2>/dev/null))
# CUDA: nvcc on PATH or in its usual place. The programs also run on machines without a GPU or driver: the runtime is
# linked statically and looks for the driver when it is first called.
CUDA ?= 1
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
NVCC := $(if $(filter 0,$(CUDA)),,$(NVCC))
ifneq ($(NVCC),)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# A distribution's package has headers and libraries in places that compilers search anyway.
CUDA_CFLAGS := -DZERO_HAVE_CUDA=1 $(addprefix -isystem ,$(filter-out /usr/include,$(patsubst %/cuda_runtime_api.h,%,\
                 $(firstword $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h)))))
CUDA_LIBS := $(addprefix -L,$(patsubst %/libcudart_static.a,%,$(firstword \
                 $(wildcard $(CUDA_HOME)/lib64/libcudart_static.a $(CUDA_HOME)/lib/libcudart_static.a)))) \
             -lnccl -lcudart_static -lrt -ldl -lpthread
# NCCL is required. cuDNN is optional: its attention is faster than our own.
finds = $(shell printf '\043include <$(1)>\n' | $(CC) $(CUDA_CFLAGS) -fsyntax-only -x c - 2>/dev/null && echo yes)
ifeq ($(call finds,nccl.h),)
NVCC :=
CUDA_CFLAGS :=
CUDA_LIBS :=
CUDA_LEFT_OUT := nccl.h was not found: install NCCL's development files
else
HAVE_CUDNN := $(call finds,cudnn.h)
CUDA_CFLAGS += $(if $(HAVE_CUDNN),-DZERO_HAVE_CUDNN=1)
CUDA_MODEL_LIBS := $(if $(HAVE_CUDNN),-lcudnn)
endif
endif
ifneq ($(NVCC),)
# Machine code for A100 and H100/H200, PTX for later GPUs. IEEE arithmetic as written (see FLOAT below). No C++ runtime:
# thread-safe statics are off, since the only statics are handles in nvcc's stubs, which all threads set to the same value.
NVCC_FLAGS := -std=c++17 -O3 -ftz=false -prec-div=true -prec-sqrt=true --fmad=false -gencode arch=compute_80,code=sm_80 \
              -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 \
              -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wextra \
              $(addprefix -Xcompiler ,$(HARDEN_CFLAGS)) \
              $(if $(filter 1,$(WERROR)),-Werror all-warnings)
endif
ifeq ($(filter clean uninstall install compile_commands.json,$(MAKECMDGOALS))$(MAKE_RESTARTS),)
$(info $(if $(NVCC),  CUDA    $(CUDA_HOME)$(shell $(NVCC) --version | sed -n 's/.*\(release [0-9.]*\).*/, \1/p')$(_comma) NCCL$(if $(HAVE_CUDNN),$(_comma) cuDNN),\
       $(if $(filter 0,$(CUDA)),  CUDA    left out (CUDA=0),  CUDA    left out: $(or $(CUDA_LEFT_OUT),no nvcc on PATH or in /usr/local/cuda))))
endif

ifeq ($(filter clean uninstall install compile_commands.json,$(MAKECMDGOALS))$(MAKE_RESTARTS),)
$(info $(if $(HWLOC_LIBS),  hwloc   $(shell pkg-config --modversion hwloc),  hwloc   left out: libhwloc-dev is not installed$(_comma) threads of offload are not bound near their GPU))
endif

ifeq ($(filter clean uninstall install compile_commands.json,$(MAKECMDGOALS))$(MAKE_RESTARTS),)
$(info $(if $(PCRE2_LIBS),  PCRE2   $(shell pkg-config --modversion libpcre2-8),  PCRE2   left out: libpcre2-dev is not installed$(_comma) zerotrain generate reads no tokenizer.json))
endif

ifeq ($(filter clean uninstall install compile_commands.json,$(MAKECMDGOALS))$(MAKE_RESTARTS),)
$(info $(if $(UTF8PROC_LIBS),  utf8proc $(shell pkg-config --modversion libutf8proc),  utf8proc left out: libutf8proc-dev is not installed$(_comma) zerotrain generate reads no tokenizer.json of Qwen))
endif

MACHINE := $(shell $(CC) -dumpmachine)

# Named constants are enums here, also those that are multiplied with floats, of which clang 18 warns.
WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes \
            -Wvla -Wundef -Wpointer-arith$(if $(findstring clang,$(CC)), -Wno-enum-float-conversion) \
            $(if $(filter 1,$(WERROR)),-Werror)
# IEEE arithmetic as written: equal bits depend on these flags.
FLOAT    := -ffp-contract=off -fno-math-errno -fno-trapping-math
SANFLAGS := $(if $(filter thread,$(SANITIZE)),-fsanitize=thread)$(if $(filter 1,$(SANITIZE)),-fsanitize=address -fsanitize=undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
# The caller's flags come after ours, but before FLOAT, which they must not undo.
ALL_CPPFLAGS := -D_GNU_SOURCE -DZERO_VERSION_STRING='"$(VERSION)"' -Iinclude -Isrc -I. $(INI_CFLAGS) $(HWLOC_CFLAGS) $(PCRE2_CFLAGS) $(UTF8PROC_CFLAGS) $(CUDA_CFLAGS) \
                $(if $(filter x86_64%,$(MACHINE)),-DZERO_HAVE_X86=1) $(CPPFLAGS)
ALL_CFLAGS := -std=c17 $(WARNINGS) $(HARDEN_CFLAGS) $(CFLAGS) $(FLOAT) $(SANFLAGS) -fopenmp -fPIC -fvisibility=hidden -pthread
ALL_LDFLAGS := $(HARDEN_LDFLAGS) $(SANFLAGS) -fopenmp -pthread $(LDFLAGS)
PIE := $(if $(filter 1,$(HARDEN)),-pie)

# ---- sources -----------------------------------------------------------------------------------------------------
SHARD_ISA  := $(addprefix kernels/shard/,adam adam8 momentum muon orthogonalize matmul reduce step cast fp8 philox poison shard_table)
SHARD_CUDA := $(if $(NVCC),$(addprefix kernels/shard/cuda/,adam.cu adam8.cu momentum.cu muon.cu orthogonalize_cuda reduce.cu step.cu cast.cu fp8.cu philox.cu poison.cu shard_cuda))
MODEL_ISA  := $(addprefix kernels/model/,sgemm linear fp8 attention decode/attention_cached layernorm rmsnorm rope gelu swiglu loss embed model_table)
MODEL_CUDA := $(if $(NVCC),$(addprefix kernels/model/cuda/,attention/simt.cu attention/forward_mma.cu attention/backward_mma.cu attention/causal.cu attention/forward_causal_mma.cu attention/backward_causal.cu attention/backward_causal_64_mma.cu attention/backward_causal_128_mma.cu \
              attention/attention_cuda column_sum.cu elementwise.cu embed.cu gelu.cu \
              head_norm.cu layernorm.cu loss.cu rmsnorm.cu rope.cu swiglu.cu gemm/gemm_cuda linear_cuda loss_cuda model_cuda graph_cuda \
              fp8/fp8.cu fp8/fp8_cuda decode/attention_cached.cu decode/attention_cached_cuda $(if $(HAVE_CUDNN),attention/attention_cudnn attention/cudnn_graphs attention/cudnn_slices cudnn/graph cudnn/plan)))
CUDA_SRC   := src/zero/device/device_cuda.c comm/gpu/nccl.c comm/gpu/copy_engine.c comm/gpu/peer_window.c
LIB_SRC    := $(filter-out $(CUDA_SRC),$(wildcard src/base/*.c src/zero/*/*.c comm/*.c comm/*/*.c)) \
              kernels/shard/shard_cpu.c $(if $(NVCC),$(CUDA_SRC))
MODEL_SRC  := kernels/model/attention_shape.c kernels/model/fp8_product.c kernels/model/model_cpu.c kernels/model/model_select.c
TRAIN_SRC  := $(wildcard src/train/*.c src/train/*/*.c)
EXAMPLES   := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c)) \
              $(if $(NVCC),$(patsubst examples/%.cu,$(BUILD)/examples/%_cuda,$(wildcard examples/*.cu)))
TESTS      := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/*/test_*.c tests/project/test_*.c tests/fuzz/test_*.c))
MPI_TESTS  := $(patsubst tests/mpi/%.c,$(BUILD)/tests/mpi/%,$(wildcard tests/mpi/*.c))
BENCHES    := $(patsubst tests/bench/%.c,$(BUILD)/tests/bench/%,$(wildcard tests/bench/*.c))

# CPU kernels are compiled once per instruction set (kernels/isa.h).
ISAS := scalar
ISA_FLAGS_scalar :=
ifneq ($(filter x86_64%,$(MACHINE)),)
ISAS += avx2 avx512
ISA_FLAGS_avx2   := -mavx2 -mfma -mf16c -mbmi2
ISA_FLAGS_avx512 := $(ISA_FLAGS_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
endif
isa_objects = $(foreach isa,$(ISAS),$(patsubst %,$(BUILD)/%.$(isa).o,$(1)))

LIB_OBJ   := $(LIB_SRC:%.c=$(BUILD)/%.o) $(call isa_objects,$(SHARD_ISA)) $(SHARD_CUDA:%=$(BUILD)/%.o)
MODEL_OBJ := $(MODEL_SRC:%.c=$(BUILD)/%.o) $(call isa_objects,$(MODEL_ISA)) $(MODEL_CUDA:%=$(BUILD)/%.o)
TRAIN_OBJ := $(TRAIN_SRC:%.c=$(BUILD)/%.o)
TRAIN_LIB_OBJ := $(filter-out %/main.o,$(TRAIN_OBJ))

LIB_LIBS   := $(MPI_LIBS) $(call STATIC_LIB,jansson) $(call STATIC_LIB,xxhash) $(HWLOC_LIBS) $(CUDA_LIBS) -lm -ldl
# Not static in any case: the archives of distributions are not position-independent.
SO_LIBS    := $(MPI_LIBS) -ljansson -lxxhash $(HWLOC_LIBS) $(CUDA_LIBS) -lm -ldl
TRAIN_LIBS := $(LIB_LIBS) $(call STATIC_LIB,iniparser) $(PCRE2_LIBS) $(UTF8PROC_LIBS) $(CUDA_MODEL_LIBS) -lopenblas

# What objects are built with. If it changes (another compiler, a CUDA toolkit installed since), they are built again.
# WERROR does not count, since it does not change objects.
SETTINGS := $(strip $(subst -Werror,,$(subst -Werror all-warnings,,$(CC) $(ALL_CPPFLAGS) $(MPI_CFLAGS) $(BLAS_CFLAGS) \
            $(ALL_CFLAGS) $(ALL_LDFLAGS) $(PIE) $(TRAIN_LIBS) $(NVCC) $(NVCC_FLAGS))))
# make -n and -q write nothing, unless there is no build yet.
ASKS_ONLY := $(findstring n,$(firstword -$(MAKEFLAGS)))$(findstring q,$(firstword -$(MAKEFLAGS)))
ifeq ($(filter clean uninstall compile_commands.json,$(MAKECMDGOALS))$(INSTALLS_WHAT_IS_THERE)$(if $(ASKS_ONLY),$(wildcard $(BUILD)/settings)),)
ifneq ($(strip $(file <$(BUILD)/settings)),$(SETTINGS))
$(shell mkdir -p $(BUILD))
$(file >$(BUILD)/settings,$(SETTINGS))
$(file >$(BUILD)/options,# Options of the last build, written by the Makefile for `make install`.)
$(foreach option,$(OPTIONS),$(file >>$(BUILD)/options,$(option) := $(subst $$,$$$$,$(if $(filter CUDA,$(option)),$(if $(NVCC),1,0),$($(option))))))
endif
endif

DOCS := $(addprefix $(BUILD)/docs/,zerotrain.1 libzero.3 zerotrain.bash)

# ---- targets -----------------------------------------------------------------------------------------------------
.PHONY: all check bench lint install uninstall clean objects tests tests-objects cuda-objects gpu-tests \
        compile_commands.json
.DELETE_ON_ERROR:
.SECONDARY:
all: $(BUILD)/zerotrain $(BUILD)/libzero.a $(BUILD)/libzero.so $(BUILD)/zero.pc $(BUILD)/zero-config-version.cmake $(EXAMPLES) $(DOCS)
objects: $(filter-out %.cu.o,$(LIB_OBJ) $(MODEL_OBJ) $(TRAIN_OBJ))
tests-objects: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/support/*.c tests/support/*/*.c tests/unit/*/*.c tests/project/*.c tests/mpi/*.c tests/bench/*.c examples/*.c))
cuda-objects: $(patsubst %,$(BUILD)/%.o,$(wildcard kernels/*/cuda/*.cu kernels/*/cuda/*/*.cu examples/*.cu))
tests: all $(TESTS) $(MPI_TESTS)

$(BUILD)/libzero.a: $(LIB_OBJ)
	$(call say,AR,$@) rm -f $@; ar rcs $@ $^
$(BUILD)/libzero.so.$(VERSION): $(LIB_OBJ)
	$(call say,LINK,$@) $(CC) -shared -Wl,-soname,libzero.so.$(SOVERSION) -Wl,--no-undefined -Wl,--exclude-libs,ALL -o $@ $^ $(ALL_LDFLAGS) $(SO_LIBS)
$(BUILD)/libzero.so.$(SOVERSION): $(BUILD)/libzero.so.$(VERSION)
	$(Q)ln -sf $(<F) $@
$(BUILD)/libzero.so: $(BUILD)/libzero.so.$(SOVERSION)
	$(Q)ln -sf $(<F) $@
$(BUILD)/zerotrain: $(TRAIN_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) $(TRAIN_LIBS)
# PREFIX and the folders below it are filled in by `make install`.
$(BUILD)/zero.pc: Makefile $(BUILD)/settings
	$(call say,GEN,$@) printf '%s\n' 'prefix=@PREFIX@' 'libdir=@LIBDIR@' 'includedir=@INCLUDEDIR@' '' \
	    'Name: zero' 'Description: ZeRO/FSDP sharding for C training codes' 'Version: $(VERSION)' \
	    'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -lzero' \
	    'Libs.private: $(LIB_LIBS) -lgomp -lpthread' > $@
$(BUILD)/zero-config-version.cmake: Makefile
	$(call say,GEN,$@) printf '%s\n' 'set(PACKAGE_VERSION $(VERSION))' \
	    'if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)' '    set(PACKAGE_VERSION_COMPATIBLE TRUE)' 'endif()' \
	    'if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)' '    set(PACKAGE_VERSION_EXACT TRUE)' 'endif()' > $@

$(BUILD)/%.o: %.c $(BUILD)/settings
	@mkdir -p $(@D)
	$(call say,CC,$<) $(CC) $(ALL_CPPFLAGS) $(MPI_CFLAGS) $(BLAS_CFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
define isa_rule
$(BUILD)/%.$(1).o: %.c $(BUILD)/settings
	@mkdir -p $$(@D)
	$$(call say,CC,'$$< ($(1))') $$(CC) $$(ALL_CPPFLAGS) $$(BLAS_CFLAGS) $$(ALL_CFLAGS) $$(ISA_FLAGS_$(1)) \
	    -DZERO_ISA_NAME=$(1) -MMD -MP -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call isa_rule,$(isa))))
# Hopper's products of four warps (wgmma) are in no PTX: these files' machine code for it is of the kind that has them.
$(BUILD)/kernels/model/cuda/attention/%_mma.cu.o $(BUILD)/kernels/model/cuda/attention/%_mma.racecheck.o: NVCC_FLAGS := $(subst arch=compute_90$(_comma)code=sm_90 ,arch=compute_90a$(_comma)code=sm_90a ,$(NVCC_FLAGS))
$(BUILD)/%.cu.o: %.cu $(BUILD)/settings
	@mkdir -p $(@D)
	$(call say,NVCC,$<) $(NVCC) $(NVCC_FLAGS) $(ALL_CPPFLAGS) -MMD -MP -c -o $@ $<

# An example is built as a user would build it: one header, one library.
$(BUILD)/examples/%: examples/%.c include/zero.h $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,CC,$<) $(CC) -std=c17 $(WARNINGS) $(HARDEN_CFLAGS) $(CFLAGS) $(SANFLAGS) -fPIE $(PIE) -Iinclude $(CPPFLAGS) -o $@ $< $(BUILD)/libzero.a $(ALL_LDFLAGS) $(LIB_LIBS)
# An example with kernels uses the library's nvcc flags, which need no C++ runtime. test_install builds it as a user would.
$(BUILD)/examples/%_cuda: $(BUILD)/examples/%.cu.o $(BUILD)/libzero.a
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) $(LIB_LIBS)

TEST_COMMON := $(patsubst %,$(BUILD)/tests/support/%.o,support fp64_model gpt2_fp64 llama_fp64 allocations async_device async/messages)
CHECK_LIBS = $(if $(filter 1,$(STATIC)),-l:libcheck_pic.a -l:libsubunit.a -lrt -lm,$(shell pkg-config --libs check))
# Models in fp64, by which others are judged, are most of the time of test_model and test_golden when they are instrumented.
$(patsubst %,$(BUILD)/tests/support/%.o,fp64_model gpt2_fp64 llama_fp64): ALL_CFLAGS := $(filter-out $(SANFLAGS),$(ALL_CFLAGS))
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_COMMON) $(TRAIN_LIB_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) $(TRAIN_LIBS) $(CHECK_LIBS)

# Tests and benchmarks for GPUs. They run on a machine that has little more than the driver.
GPU_TESTS := $(if $(NVCC),$(patsubst tests/gpu/programs/%.c,$(BUILD)/tests/gpu/programs/%,$(filter-out %/kernel_times.c,\
               $(wildcard tests/gpu/programs/*.c))) $(if $(call finds,cupti.h),$(BUILD)/tests/gpu/programs/kernel_times.so) \
               $(BUILD)/tests/gpu/programs/racecheck_attention)
gpu-tests: $(GPU_TESTS)
$(BUILD)/tests/gpu/programs/%_model_cuda: $(BUILD)/tests/gpu/programs/%_model_cuda.o $(MODEL_OBJ) $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) -Wl,--as-needed $(TRAIN_LIBS)
$(BUILD)/tests/gpu/programs/%_collectives: $(BUILD)/tests/gpu/programs/%_collectives.o $(BUILD)/tests/gpu/programs/collectives.cu.o $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) -Wl,--as-needed $(LIB_LIBS) -lcublasLt
$(BUILD)/tests/gpu/programs/%_own_optimizer: $(BUILD)/tests/gpu/programs/%_own_optimizer.o $(BUILD)/tests/gpu/programs/own_optimizer.cu.o $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) -Wl,--as-needed $(LIB_LIBS)
# test_model_cuda for racecheck of compute-sanitizer: in some kernels every lane arrives (kernels/model/cuda/attention/causal.cuh).
ELECTING := $(filter %/forward_causal_mma.cu.o %/backward_causal_64_mma.cu.o %/backward_causal_128_mma.cu.o,$(MODEL_OBJ))
$(BUILD)/%.racecheck.o: %.cu $(BUILD)/settings
	@mkdir -p $(@D)
	$(call say,NVCC,'$< (racecheck)') $(NVCC) $(NVCC_FLAGS) -DZERO_EVERY_LANE_ARRIVES $(ALL_CPPFLAGS) -MMD -MP -c -o $@ $<
$(BUILD)/tests/gpu/programs/racecheck_attention: $(BUILD)/tests/gpu/programs/test_model_cuda.o $(filter-out $(ELECTING),$(MODEL_OBJ)) $(ELECTING:.cu.o=.racecheck.o) $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) -Wl,--as-needed $(TRAIN_LIBS)
# zerotrain with its CUDA calls wrapped by count_calls.c.
$(BUILD)/tests/gpu/programs/count_calls: $(BUILD)/tests/gpu/programs/count_calls.o $(TRAIN_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) -Wl,--wrap=cudaGetDriverEntryPointByVersion \
	    $$(sed -nE 's/^ *X.([A-Za-z_]+),.*/-Wl,--wrap=\1/p' $(<:$(BUILD)/%.o=%.c)) -Wl,--as-needed $(TRAIN_LIBS)
# zerotrain with its devices wrapped by zerotrain_faults.c.
$(BUILD)/tests/gpu/programs/zerotrain_faults: $(BUILD)/tests/gpu/programs/zerotrain_faults.o $(TRAIN_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) -Wl,--wrap=zero_device_cuda_create -Wl,--as-needed $(TRAIN_LIBS)
# A library that CUDA's driver loads into zerotrain.
$(BUILD)/tests/gpu/programs/kernel_times.so: $(BUILD)/tests/gpu/programs/kernel_times.o
	$(call say,LINK,$@) $(CC) -shared -Wl,--no-undefined -o $@ $^ $(HARDEN_LDFLAGS) $(LDFLAGS) -ldl
$(BUILD)/tests/gpu/programs/%: $(BUILD)/tests/gpu/programs/%.o $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) $(PIE) -o $@ $^ $(ALL_LDFLAGS) -Wl,--as-needed $(LIB_LIBS)

# ---- documents ---------------------------------------------------------------------------------------------------
# Man pages and bash completion, generated from the option table and zero.h. docs/configuration.md is generated, too, and
# kept in the repository.
.PHONY: docs docs/configuration.md
docs: $(DOCS) docs/configuration.md
$(BUILD)/docs/options: $(BUILD)/docs/generate/options.o $(TRAIN_LIB_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,LINK,$@) $(CC) -o $@ $^ $(ALL_LDFLAGS) $(TRAIN_LIBS)
$(BUILD)/docs/zerotrain.1: $(BUILD)/docs/options
	$(call say,GEN,$@) $< man > $@
$(BUILD)/docs/zerotrain.bash: $(BUILD)/docs/options
	$(call say,GEN,$@) $< bash > $@
$(BUILD)/docs/libzero.3: include/zero.h docs/generate/libzero.awk
	@mkdir -p $(@D)
	$(call say,GEN,$@) awk -v version=$(VERSION) -f docs/generate/libzero.awk $< > $@
docs/configuration.md: $(BUILD)/docs/options
	$(Q)$< markdown > $(BUILD)/docs/reference
	$(Q)sed -i -e '/<!-- begin reference -->/r $(BUILD)/docs/reference' -e '/<!-- begin reference -->/,/<!-- end reference -->/{/<!-- /!d}' $@

check: tests
	$(Q)tests/run-all $(BUILD)
bench: all $(BENCHES)
	$(Q)tests/bench/run-all $(BUILD)

# Fuzzes the readers of files with clang's libFuzzer: SECONDS each, TARGETS='safetensors ini' or all. tests/fuzz/run calls
# make again for `fuzzers`, with clang and BUILD=build/fuzz. tests/fuzz/test_fuzz_corpus.c links the same targets.
FUZZ_PARTS   := $(patsubst %,$(BUILD)/tests/fuzz/%.o,input engine tokens)
FUZZ_TARGETS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_MUTATOR := $(patsubst %,$(BUILD)/tests/fuzz/%.o,mutate_json mutator_safetensors mutator_json)
.PHONY: fuzz fuzzers
fuzz:
	$(Q)tests/fuzz/run $(or $(SECONDS),10) $(TARGETS)
fuzzers: $(FUZZ_TARGETS)
$(BUILD)/tests/fuzz/parts.a: $(FUZZ_PARTS) $(BUILD)/tests/fuzz/mutate_json.o $(TRAIN_LIB_OBJ)
	$(call say,AR,$@) rm -f $@; ar rcs $@ $^
# Targets that read JSON, and safetensors, have a mutator of their own.
$(FUZZ_TARGETS): $(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(FUZZ_MUTATOR) \
                 $(BUILD)/tests/fuzz/parts.a $(BUILD)/libzero.a
	$(call say,LINK,$@) $(CC) -fsanitize=fuzzer -Wl,--defsym=LLVMFuzzerTestOneInput=fuzz_$* -o $@ $< \
	    $(filter %/mutator_$(if $(filter config_json index manifest state tokenizer,$*),json,$*).o,$^) $(filter %.a,$^) \
	    $(ALL_LDFLAGS) $(LIB_LIBS) $(call STATIC_LIB,iniparser) $(PCRE2_LIBS) $(UTF8PROC_LIBS)
$(BUILD)/tests/fuzz/test_fuzz_corpus: $(FUZZ_TARGETS:%=%.o) $(FUZZ_PARTS)
tests-objects: $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/fuzz/*.c))

lint:
	$(Q)tests/lint

# Records the ABI of zero.h: at a release, and after a change that tests/lint names (tests/abi/run says which).
.PHONY: abi
abi:
	$(Q)tests/abi/run record

# Folders below PREFIX are written relative to it, so that the installed tree can be moved.
below_prefix = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
CMAKE_DIR = $(LIBDIR)/cmake/zero
COMPLETION_DIR = $(DATADIR)/bash-completion/completions
install: all
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(CMAKE_DIR) $(DESTDIR)$(INCLUDEDIR)
	install -m 755 $(BUILD)/zerotrain $(DESTDIR)$(BINDIR)/
	install -m 644 $(BUILD)/libzero.a $(DESTDIR)$(LIBDIR)/
	install -m 755 $(BUILD)/libzero.so.$(VERSION) $(DESTDIR)$(LIBDIR)/
	ln -sf libzero.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libzero.so.$(SOVERSION)
	ln -sf libzero.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libzero.so
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(call below_prefix,$(LIBDIR))|; s|@INCLUDEDIR@|$(call below_prefix,$(INCLUDEDIR))|' \
	    $(BUILD)/zero.pc > $(DESTDIR)$(LIBDIR)/pkgconfig/zero.pc
	sed "s|@LIBDIR@|../..|; s|@INCLUDEDIR@|$$(realpath -ms --relative-to=$(CMAKE_DIR) $(INCLUDEDIR))|" \
	    src/zero-config.cmake > $(DESTDIR)$(CMAKE_DIR)/zero-config.cmake
	install -m 644 $(BUILD)/zero-config-version.cmake $(DESTDIR)$(CMAKE_DIR)/
	chmod 644 $(DESTDIR)$(LIBDIR)/pkgconfig/zero.pc $(DESTDIR)$(CMAKE_DIR)/zero-config.cmake
	install -m 644 include/zero.h include/zero.hpp fortran/zero.f90 $(DESTDIR)$(INCLUDEDIR)/
	install -d $(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(MANDIR)/man3 $(DESTDIR)$(COMPLETION_DIR)
	install -m 644 $(BUILD)/docs/zerotrain.1 $(DESTDIR)$(MANDIR)/man1/
	install -m 644 $(BUILD)/docs/libzero.3 $(DESTDIR)$(MANDIR)/man3/
	install -m 644 $(BUILD)/docs/zerotrain.bash $(DESTDIR)$(COMPLETION_DIR)/zerotrain
uninstall:
	rm -f $(DESTDIR)$(BINDIR)/zerotrain $(DESTDIR)$(LIBDIR)/libzero.a $(DESTDIR)$(LIBDIR)/libzero.so* \
	    $(DESTDIR)$(LIBDIR)/pkgconfig/zero.pc $(addprefix $(DESTDIR)$(INCLUDEDIR)/,zero.h zero.hpp zero.f90) \
	    $(DESTDIR)$(MANDIR)/man1/zerotrain.1 $(DESTDIR)$(MANDIR)/man3/libzero.3 $(DESTDIR)$(COMPLETION_DIR)/zerotrain
	rm -rf $(DESTDIR)$(CMAKE_DIR)

# Lists the commands that make would run to compile C sources. Kernels have one entry per instruction set. clangd does
# not know nvcc, so .cu files are left out.
compile_commands.json:
	$(call say,GEN,$@) $(MAKE) -s --no-print-directory -B -n V=1 objects tests-objects | \
	    sed -n -e ':join' -e '/\\$$/{' -e 'N' -e 's/\\\n *//' -e 'bjoin' -e '}' -e '/ -c -o [^ ]* [^ ]*\.c$$/p' | \
	    sed -e 's/[\\"]/\\&/g' -e 's|^.* \([^ ]*\)$$|  {"directory": "$(CURDIR)", "file": "\1", "command": "&"},|' \
	        -e '1s/^/[\n/' -e '$$s/,$$/\n]/' > $@
clean:
	rm -rf build

-include $(shell [ -d $(BUILD) ] && find $(BUILD) -name '*.d')
