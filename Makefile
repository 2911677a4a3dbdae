# Builds libzero (the library) and zerotrain (the trainer).
#
#   make              build/zerotrain, build/libzero.a, build/libzero.so, examples, files for pkg-config and CMake
#   make check        runs every test        make bench      measures speed, as ratios
#   make lint         clang-format, cppcheck, clang's warnings
#   make install PREFIX=/usr/local DESTDIR=        make uninstall        make clean
#   make compile_commands.json                     for clangd and other tools that read C
#
# Options: V=1 shows full commands · WERROR=1 makes warnings errors · CUDA=0 leaves CUDA out even if there is nvcc
#          SANITIZE=1 builds with AddressSanitizer and UBSan in build/sanitize, SANITIZE=thread BUILD=DIR with TSan
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

# The options of the last build, kept in BUILD/options. `make install` without any of them on its command line reads
# them from there, so it installs that build even if root has another PATH or environment.
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

include mk/deps.mk

MACHINE := $(shell $(CC) -dumpmachine)

# Named constants are enums here, also those that are multiplied with floats, of which clang 18 warns.
WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wmissing-prototypes \
            -Wvla -Wundef -Wpointer-arith$(if $(findstring clang,$(CC)), -Wno-enum-float-conversion) \
            $(if $(filter 1,$(WERROR)),-Werror)
# IEEE arithmetic as written: equal bits depend on these flags.
FLOAT    := -ffp-contract=off -fno-math-errno -fno-trapping-math
SANFLAGS := $(if $(filter thread,$(SANITIZE)),-fsanitize=thread)$(if $(filter 1,$(SANITIZE)),-fsanitize=address \
            -fsanitize=undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
# The caller's flags come after ours, but before FLOAT, which they must not undo.
ALL_CPPFLAGS := -D_GNU_SOURCE -DZERO_VERSION_STRING='"$(VERSION)"' -Iinclude -Isrc -I. \
                $(INI_CFLAGS) $(HWLOC_CFLAGS) $(PCRE2_CFLAGS) $(UTF8PROC_CFLAGS) $(CUDA_CFLAGS) \
                $(if $(filter x86_64%,$(MACHINE)),-DZERO_HAVE_X86=1) $(CPPFLAGS)
ALL_CFLAGS := -std=c17 $(WARNINGS) $(HARDEN_CFLAGS) $(CFLAGS) $(FLOAT) $(SANFLAGS) \
              -fopenmp -fPIC -fvisibility=hidden -pthread
ALL_LDFLAGS := $(HARDEN_LDFLAGS) $(SANFLAGS) -fopenmp -pthread $(LDFLAGS)
PIE := $(if $(filter 1,$(HARDEN)),-pie)

# ---- sources -----------------------------------------------------------------------------------------------------
# Kernels for CPUs are compiled once per instruction set (kernels/isa.h), but for what chooses between the results.
SHARD_SRC  := kernels/shard_cpu.c
MODEL_SRC  := $(addprefix src/train/kernels/,common.c kernels_cpu.c)
SHARD_ISA  := $(filter-out $(SHARD_SRC),$(wildcard kernels/*.c))
MODEL_ISA  := $(filter-out $(MODEL_SRC),$(wildcard src/train/kernels/*.c))
# C that includes CUDA's headers, apart from what is in the folders cuda/.
CUDA_SRC   := src/zero/device/device_cuda.c comm/gpu/nccl.c comm/gpu/copy_engine.c comm/gpu/peer_window.c
CUDNN_SRC  := $(wildcard src/train/kernels/attention/cudnn/*.c)
SHARD_CUDA := $(if $(NVCC),$(wildcard kernels/cuda/*.c kernels/cuda/*.cu))
MODEL_CUDA := $(if $(NVCC),$(filter-out $(if $(HAVE_CUDNN),,$(CUDNN_SRC)),$(foreach end,c cu,$(wildcard \
              $(addprefix src/train/kernels/,cuda/*.$(end) adapters/*.$(end) attention/*.$(end) attention/*/*.$(end))))))
LIB_SRC    := $(filter-out $(CUDA_SRC),$(wildcard src/base/*.c src/zero/*/*.c comm/*.c comm/*/*.c)) $(SHARD_SRC) \
              $(if $(NVCC),$(CUDA_SRC))
TRAIN_SRC  := $(filter-out src/train/kernels/%,$(wildcard src/train/*.c src/train/*/*.c))
EXAMPLES   := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c)) \
              $(if $(NVCC),$(patsubst examples/%.cu,$(BUILD)/examples/%_cuda,$(wildcard examples/*.cu)))
TESTS      := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/*/test_*.c tests/project/test_*.c tests/fuzz/test_*.c))
MPI_TESTS  := $(patsubst tests/mpi/%.c,$(BUILD)/tests/mpi/%,$(wildcard tests/mpi/*.c))
BENCHES    := $(patsubst tests/bench/%.c,$(BUILD)/tests/bench/%,$(wildcard tests/bench/*.c))

ISAS := scalar
ISA_FLAGS_scalar :=
ifneq ($(filter x86_64%,$(MACHINE)),)
ISAS += avx2 avx512
ISA_FLAGS_avx2   := -mavx2 -mfma -mf16c -mbmi2
ISA_FLAGS_avx512 := $(ISA_FLAGS_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
endif
# Those of C lose their ending, those of CUDA keep it.
objects_of = $(patsubst %.c,$(BUILD)/%.o,$(filter %.c,$(1))) $(patsubst %,$(BUILD)/%.o,$(filter %.cu,$(1)))
isa_objects = $(foreach isa,$(ISAS),$(patsubst %.c,$(BUILD)/%.$(isa).o,$(1)))

LIB_OBJ   := $(call objects_of,$(LIB_SRC) $(SHARD_CUDA)) $(call isa_objects,$(SHARD_ISA))
MODEL_OBJ := $(call objects_of,$(MODEL_SRC) $(MODEL_CUDA)) $(call isa_objects,$(MODEL_ISA))
TRAIN_OBJ := $(call objects_of,$(TRAIN_SRC))
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
KEEPS_SETTINGS := $(filter clean uninstall compile_commands.json,$(MAKECMDGOALS))$(INSTALLS_WHAT_IS_THERE)
ifeq ($(KEEPS_SETTINGS)$(if $(ASKS_ONLY),$(wildcard $(BUILD)/settings)),)
ifneq ($(strip $(file <$(BUILD)/settings)),$(SETTINGS))
$(shell mkdir -p $(BUILD))
$(file >$(BUILD)/settings,$(SETTINGS))
$(file >$(BUILD)/options,# Options of the last build, written by the Makefile for `make install`.)
kept = $(if $(filter CUDA,$(1)),$(if $(NVCC),1,0),$($(1)))
$(foreach option,$(OPTIONS),$(file >>$(BUILD)/options,$(option) := $(subst $$,$$$$,$(call kept,$(option)))))
endif
endif

# ---- targets -----------------------------------------------------------------------------------------------------
.PHONY: all check bench lint install uninstall clean objects tests tests-objects cuda-objects gpu-tests \
        compile_commands.json
.DELETE_ON_ERROR:
.SECONDARY:
all: $(addprefix $(BUILD)/,zerotrain libzero.a libzero.so zero.pc zero-config-version.cmake) $(EXAMPLES)
objects: $(filter-out %.cu.o,$(LIB_OBJ) $(MODEL_OBJ) $(TRAIN_OBJ))
tests-objects: $(call objects_of,$(wildcard examples/*.c $(addprefix tests/,$(addsuffix /*.c,\
                 support support/* unit/* mpi mpi/* project bench fuzz random))))
tests: all $(TESTS) $(MPI_TESTS) $(BUILD)/tests/support/zerotrain_paced

# $(call link,LIBRARIES): links the objects and archives that the target depends on.
link = $(call say,LINK,$@) mkdir -p $(@D); $(CC) $(PIE) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(ALL_LDFLAGS) $(1)

$(BUILD)/libzero.a: $(LIB_OBJ)
	$(call say,AR,$@) rm -f $@; ar rcs $@ $^
$(BUILD)/libzero.so.$(VERSION): $(LIB_OBJ)
	$(call say,LINK,$@) $(CC) -shared -Wl,-soname,libzero.so.$(SOVERSION) -Wl,--no-undefined \
	    -Wl,--exclude-libs,ALL -o $@ $^ $(ALL_LDFLAGS) $(SO_LIBS)
$(BUILD)/libzero.so.$(SOVERSION): $(BUILD)/libzero.so.$(VERSION)
	$(Q)ln -sf $(<F) $@
$(BUILD)/libzero.so: $(BUILD)/libzero.so.$(SOVERSION)
	$(Q)ln -sf $(<F) $@
$(BUILD)/zerotrain: $(TRAIN_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	$(call link,$(TRAIN_LIBS))
# PREFIX and the folders below it are filled in by `make install`.
$(BUILD)/zero.pc: Makefile $(BUILD)/settings
	$(call say,GEN,$@) printf '%s\n' 'prefix=@PREFIX@' 'libdir=@LIBDIR@' 'includedir=@INCLUDEDIR@' '' \
	    'Name: zero' 'Description: ZeRO/FSDP sharding for C training codes' 'Version: $(VERSION)' \
	    'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -lzero' \
	    'Libs.private: $(LIB_LIBS) -lgomp -lpthread' > $@
$(BUILD)/zero-config-version.cmake: Makefile
	$(call say,GEN,$@) printf '%s\n' 'set(PACKAGE_VERSION $(VERSION))' \
	    'if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)' \
	    '    set(PACKAGE_VERSION_COMPATIBLE TRUE)' 'endif()' \
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
$(BUILD)/src/train/page/page_html.o: src/train/page/page.html
# An example is built as a user would build it: one header, one library.
$(BUILD)/examples/%: examples/%.c include/zero.h $(BUILD)/libzero.a
	@mkdir -p $(@D)
	$(call say,CC,$<) $(CC) -std=c17 $(WARNINGS) $(HARDEN_CFLAGS) $(CFLAGS) $(SANFLAGS) -fPIE $(PIE) -Iinclude \
	    $(CPPFLAGS) -o $@ $< $(BUILD)/libzero.a $(ALL_LDFLAGS) $(LIB_LIBS)

FP64_MODELS := $(addprefix $(BUILD)/tests/support/fp64/,fp64_model.o gpt2_fp64.o llama_fp64.o)
TEST_COMMON := $(addprefix $(BUILD)/tests/support/,support.o allocations.o) $(FP64_MODELS) \
               $(patsubst %,$(BUILD)/tests/support/async/%.o,async_device kernels messages transport)
CHECK_LIBS = $(if $(filter 1,$(STATIC)),-l:libcheck_pic.a -l:libsubunit.a -lrt -lm,$(shell pkg-config --libs check))
# Models in fp64, by which others are judged, would take most of the time of test_model and test_golden if they were
# instrumented.
$(FP64_MODELS): ALL_CFLAGS := $(filter-out $(SANFLAGS),$(ALL_CFLAGS))
# Programs of several files have those in a folder.
$(BUILD)/tests/mpi/api_random: $(call objects_of,$(wildcard tests/mpi/api/*.c))
$(BUILD)/tests/mpi/comm_cases: $(call objects_of,$(wildcard tests/mpi/comm/*.c))
$(BUILD)/tests/mpi/engine_cases: $(call objects_of,$(wildcard tests/mpi/engine/*.c))
$(BUILD)/tests/mpi/stream_cases: $(call objects_of,$(wildcard tests/mpi/stream/*.c))
$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_COMMON) $(TRAIN_LIB_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	$(call link,$(TRAIN_LIBS) $(CHECK_LIBS))

# zerotrain with some of its calls wrapped by the program's own file.
PACED_WRAPS := zero_engine_create zero_engine_trace zero_acquire zero_step trace_begin_step trace_end_step
$(BUILD)/tests/support/zerotrain_paced: $(BUILD)/tests/support/zerotrain_paced.o $(TRAIN_OBJ) $(MODEL_OBJ) \
                                        $(BUILD)/libzero.a
	$(call link,$(PACED_WRAPS:%=-Wl$(_comma)--wrap=%) $(TRAIN_LIBS))

check: tests
	$(Q)tests/run-all $(BUILD)
bench: all $(BENCHES)
	$(Q)tests/bench/run-all $(BUILD)

# Fuzzes the readers of files with clang's libFuzzer: SECONDS each, TARGETS='safetensors ini' or all. tests/fuzz/run
# calls make again for `fuzzers`, with clang and BUILD=build/fuzz. tests/fuzz/test_fuzz_corpus.c links the same targets.
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

include mk/gpu.mk
include mk/docs.mk
include mk/install.mk

lint:
	$(Q)tests/lint

# Records the ABI of zero.h: at a release, and after a change that tests/lint names (tests/abi/run says which).
.PHONY: abi
abi:
	$(Q)tests/abi/run record

# Lists the commands that make would run to compile C sources. Kernels have one entry per instruction set. clangd does
# not know nvcc, so .cu files are left out.
compile_commands.json:
	$(call say,GEN,$@) $(MAKE) -s --no-print-directory -B -n V=1 objects tests-objects | \
	    sed -n -e ':join' -e '/\\$$/{' -e 'N' -e 's/\\\n *//' -e 'bjoin' -e '}' -e '/ -c -o [^ ]* [^ ]*\.c$$/p' | \
	    sed -e 's/[\\"]/\\&/g' -e 's|^.* \([^ ]*\)$$|  {"directory": "$(CURDIR)", "file": "\1", "command": "&"},|' \
	        -e '1s/^/[\n/' -e '$$s/,$$/\n]/' > $@
clean:
	rm -rf $(BUILD)

-include $(shell [ -d $(BUILD) ] && find $(BUILD) -name '*.d')
