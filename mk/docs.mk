# docs.mk - man pages and bash completion, generated from the option table and zero.h. docs/configuration.md is
# generated, too, and kept in the repository.
.PHONY: docs docs/configuration.md
DOCS := $(addprefix $(BUILD)/docs/,zerotrain.1 libzero.3 zerotrain.bash)
all: $(DOCS)
docs: $(DOCS) docs/configuration.md
$(BUILD)/docs/options: $(BUILD)/docs/generate/options.o $(TRAIN_LIB_OBJ) $(MODEL_OBJ) $(BUILD)/libzero.a
	$(call link,$(TRAIN_LIBS))
$(BUILD)/docs/zerotrain.1: $(BUILD)/docs/options
	$(call say,GEN,$@) $< man > $@
$(BUILD)/docs/zerotrain.bash: $(BUILD)/docs/options
	$(call say,GEN,$@) $< bash > $@
$(BUILD)/docs/libzero.3: include/zero.h docs/generate/libzero.awk
	@mkdir -p $(@D)
	$(call say,GEN,$@) awk -v version=$(VERSION) -f docs/generate/libzero.awk $< > $@
docs/configuration.md: $(BUILD)/docs/options
	$(Q)$< markdown > $(BUILD)/docs/reference
	$(Q)sed -i -e '/<!-- begin reference -->/r $(BUILD)/docs/reference' \
	    -e '/<!-- begin reference -->/,/<!-- end reference -->/{/<!-- /!d}' $@
