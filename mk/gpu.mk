# gpu.mk - how CUDA sources are compiled, and the tests and benchmarks that need GPUs. What is found of CUDA: deps.mk.

$(BUILD)/%.cu.o: %.cu $(BUILD)/settings
	@mkdir -p $(@D)
	$(call say,NVCC,$<) $(NVCC) $(NVCC_FLAGS) $(ALL_CPPFLAGS) -MMD -MP -c -o $@ $<
# Hopper's products of four warps (wgmma) are in no PTX: these files' machine code for it is of the kind that has them.
WGMMA := $(patsubst %.cu,$(BUILD)/%,$(wildcard src/train/kernels/attention/*/*_mma.cu))
sm_90 := arch=compute_90$(_comma)code=sm_90
sm_90a := arch=compute_90a$(_comma)code=sm_90a
$(WGMMA:%=%.cu.o) $(WGMMA:%=%.racecheck.o): NVCC_FLAGS := $(patsubst $(sm_90),$(sm_90a),$(NVCC_FLAGS))
cuda-objects: $(patsubst %,$(BUILD)/%.o,$(wildcard kernels/cuda/*.cu examples/*.cu \
              $(addprefix src/train/kernels/,cuda/*.cu adapters/*.cu attention/*/*.cu)))

# An example with kernels uses the library's nvcc flags, which need no C++ runtime. test_install builds it as a user
# would.
$(BUILD)/examples/%_cuda: $(BUILD)/examples/%.cu.o $(BUILD)/libzero.a
	$(call link,$(LIB_LIBS))

# ---- tests and benchmarks for GPUs: they run on a machine that has little more than the driver ----------------------
GPU := $(BUILD)/tests/gpu/programs
GPU_TESTS := $(if $(NVCC),$(patsubst tests/gpu/programs/%.c,$(GPU)/%,\
             $(filter-out %/kernel_times.c,$(wildcard tests/gpu/programs/*.c))) \
             $(if $(call finds,cupti.h),$(GPU)/kernel_times.so) $(GPU)/racecheck_attention)
gpu-tests: $(GPU_TESTS)
$(GPU)/%_model_cuda: $(GPU)/%_model_cuda.o $(MODEL_OBJ) $(BUILD)/libzero.a
	$(call link,-Wl$(_comma)--as-needed $(TRAIN_LIBS))
$(GPU)/%_collectives: $(GPU)/%_collectives.o $(GPU)/collectives.cu.o $(BUILD)/libzero.a
	$(call link,-Wl$(_comma)--as-needed $(LIB_LIBS) -lcublasLt)
$(GPU)/%_own_optimizer: $(GPU)/%_own_optimizer.o $(GPU)/own_optimizer.cu.o $(BUILD)/libzero.a
	$(call link,-Wl$(_comma)--as-needed $(LIB_LIBS))
$(GPU)/%: $(GPU)/%.o $(BUILD)/libzero.a
	$(call link,-Wl$(_comma)--as-needed $(LIB_LIBS))
# test_model_cuda for racecheck of compute-sanitizer: in some kernels every lane arrives (attention/hopper/causal.cuh).
ELECTING := $(filter $(addprefix %/,forward_causal_mma.cu.o backward_causal_64_mma.cu.o backward_causal_128_mma.cu.o),\
            $(MODEL_OBJ))
$(BUILD)/%.racecheck.o: %.cu $(BUILD)/settings
	@mkdir -p $(@D)
	$(call say,NVCC,'$< (racecheck)') $(NVCC) $(NVCC_FLAGS) -DZERO_EVERY_LANE_ARRIVES $(ALL_CPPFLAGS) -MMD -MP -c -o $@ $<
$(GPU)/racecheck_attention: $(GPU)/test_model_cuda.o $(filter-out $(ELECTING),$(MODEL_OBJ)) \
                            $(ELECTING:.cu.o=.racecheck.o) $(BUILD)/libzero.a
	$(call link,-Wl$(_comma)--as-needed $(TRAIN_LIBS))
# zerotrain_paced with its CUDA calls wrapped by count_calls.c, too.
$(GPU)/count_calls: $(GPU)/count_calls.o $(BUILD)/tests/support/zerotrain_paced.o $(TRAIN_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	$(call link,$(sort $(PACED_WRAPS:%=-Wl$(_comma)--wrap=%)) -Wl$(_comma)--wrap=cudaGetDriverEntryPointByVersion \
	    $$(sed -nE 's/^ *X.([A-Za-z_]+)$(_comma).*/-Wl$(_comma)--wrap=\1/p' $(<:$(BUILD)/%.o=%.c)) \
	    -Wl$(_comma)--as-needed $(TRAIN_LIBS))
# zerotrain with its devices wrapped by zerotrain_faults.c.
$(GPU)/zerotrain_faults: $(GPU)/zerotrain_faults.o $(TRAIN_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	$(call link,-Wl$(_comma)--wrap=zero_device_cuda_create -Wl$(_comma)--as-needed $(TRAIN_LIBS))
# A library that CUDA's driver loads into zerotrain.
$(GPU)/kernel_times.so: $(GPU)/kernel_times.o
	$(call say,LINK,$@) $(CC) -shared -Wl,--no-undefined -o $@ $^ $(HARDEN_LDFLAGS) $(LDFLAGS) -ldl
