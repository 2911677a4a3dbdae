# deps.mk - what this machine has: the compiler's hardening, required and optional libraries.

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
FORTIFY := $(if $(call accepts,-O1 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3),3,2)
HARDEN_CFLAGS += -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$(FORTIFY)
endif
HARDEN_LDFLAGS := -Wl,-z,relro,-z,now,-z,noexecstack
endif
endif

# ---- required -------------------------------------------------------------------------------------------------------
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

# ---- optional -------------------------------------------------------------------------------------------------------
# Says what was found, unless the goals compile nothing.
tells = $(if $(filter clean uninstall install compile_commands.json,$(MAKECMDGOALS))$(MAKE_RESTARTS),,$(info $(1)))
_comma := ,

# $(call optional,NAME,PACKAGE,STATIC,EFFECT): sets NAME_LIBS and NAME_CFLAGS, which define ZERO_HAVE_NAME, or says what
# is missing without PACKAGE. STATIC=1 links lib<STATIC>.a.
define optional
$(1)_LIBS := $(shell pkg-config --libs $(2) 2>/dev/null)
ifneq ($$($(1)_LIBS),)
$(1)_CFLAGS := -DZERO_HAVE_$(1)=1 $(shell pkg-config --cflags $(2) 2>/dev/null)
$(if $(3),$(if $(filter 1,$(STATIC)),$(1)_LIBS := -l:lib$(3).a))
$$(call tells,  $(1)  $(shell pkg-config --modversion $(2) 2>/dev/null))
else
$$(call tells,  $(1)  left out: $(2) is not installed$$(_comma) $(4))
endif
endef
$(eval $(call optional,HWLOC,hwloc,,threads of offload are not bound near their GPU))
# Splits text into words for tokenizer.json.
$(eval $(call optional,PCRE2,libpcre2-8,pcre2-8,zerotrain generate reads no tokenizer.json))
# Brings text into normal form C, which Qwen's tokenizers want.
$(eval $(call optional,UTF8PROC,libutf8proc,utf8proc,zerotrain generate reads no tokenizer.json of Qwen))

# ---- CUDA -----------------------------------------------------------------------------------------------------------
# nvcc on PATH or in its usual place. The programs also run on machines without a GPU or driver: the runtime is linked
# statically and looks for the driver when it is first called.
CUDA ?= 1
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
NVCC := $(if $(filter 0,$(CUDA)),,$(NVCC))
ifneq ($(NVCC),)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
# A distribution's package has headers and libraries in places that compilers search anyway.
CUDA_HEADERS := $(firstword $(wildcard $(CUDA_HOME)/include/cuda_runtime_api.h))
CUDA_RUNTIME := $(firstword $(wildcard $(CUDA_HOME)/lib64/libcudart_static.a $(CUDA_HOME)/lib/libcudart_static.a))
CUDA_CFLAGS := -DZERO_HAVE_CUDA=1 $(addprefix -isystem ,$(filter-out /usr/include,\
               $(patsubst %/cuda_runtime_api.h,%,$(CUDA_HEADERS))))
CUDA_LIBS := $(addprefix -L,$(patsubst %/libcudart_static.a,%,$(CUDA_RUNTIME))) \
             -lnccl -lcudart_static -lrt -ldl -lpthread
# NCCL is required. cuDNN is optional: its attention is faster than our own where none of ours is made for the shape.
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
CUDA_RELEASE := $(shell $(NVCC) --version | sed -n 's/.*\(release [0-9.]*\).*/, \1/p')
$(call tells,  CUDA  $(CUDA_HOME)$(CUDA_RELEASE)$(_comma) NCCL$(if $(HAVE_CUDNN),$(_comma) cuDNN))
else ifeq ($(CUDA),0)
$(call tells,  CUDA  left out (CUDA=0))
else
$(call tells,  CUDA  left out: $(or $(CUDA_LEFT_OUT),no nvcc on PATH or in /usr/local/cuda))
endif

# Machine code for A100 and H100/H200, PTX for later GPUs. IEEE arithmetic as written (FLOAT in the Makefile). No C++
# runtime: thread-safe statics are off, since the only statics are handles in nvcc's stubs, which all threads set to
# the same value.
NVCC_FLAGS := $(if $(NVCC),-std=c++17 -O3 -ftz=false -prec-div=true -prec-sqrt=true --fmad=false \
              -gencode arch=compute_80$(_comma)code=sm_80 -gencode arch=compute_90$(_comma)code=sm_90 \
              -gencode arch=compute_90$(_comma)code=compute_90 \
              -Xcompiler -fPIC$(_comma)-fvisibility=hidden$(_comma)-fno-exceptions$(_comma)-fno-rtti \
              -Xcompiler -fno-threadsafe-statics$(_comma)-Wall$(_comma)-Wextra \
              $(addprefix -Xcompiler ,$(HARDEN_CFLAGS)) $(if $(filter 1,$(WERROR)),-Werror all-warnings))
