# install.mk - make install, make uninstall. Folders below PREFIX are written relative to it, so that the installed tree
# can be moved.
below_prefix = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
CMAKE_DIR = $(LIBDIR)/cmake/zero
COMPLETION_DIR = $(DATADIR)/bash-completion/completions
# A Python script renders chat templates. zerotrain finds it from where it is itself (src/train/text/chat_template.c).
SCRIPT_DIR = $(patsubst %/,%,$(dir $(BINDIR)))/share/zerotrain
install: all
	install -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(CMAKE_DIR) $(DESTDIR)$(INCLUDEDIR)
	install -m 755 $(BUILD)/zerotrain $(DESTDIR)$(BINDIR)/
	install -m 644 $(BUILD)/libzero.a $(DESTDIR)$(LIBDIR)/
	install -m 755 $(BUILD)/libzero.so.$(VERSION) $(DESTDIR)$(LIBDIR)/
	ln -sf libzero.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libzero.so.$(SOVERSION)
	ln -sf libzero.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libzero.so
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(call below_prefix,$(LIBDIR))|' \
	    -e 's|@INCLUDEDIR@|$(call below_prefix,$(INCLUDEDIR))|' \
	    $(BUILD)/zero.pc > $(DESTDIR)$(LIBDIR)/pkgconfig/zero.pc
	sed "s|@LIBDIR@|../..|; s|@INCLUDEDIR@|$$(realpath -ms --relative-to=$(CMAKE_DIR) $(INCLUDEDIR))|" \
	    src/zero-config.cmake > $(DESTDIR)$(CMAKE_DIR)/zero-config.cmake
	install -m 644 $(BUILD)/zero-config-version.cmake $(DESTDIR)$(CMAKE_DIR)/
	chmod 644 $(DESTDIR)$(LIBDIR)/pkgconfig/zero.pc $(DESTDIR)$(CMAKE_DIR)/zero-config.cmake
	install -m 644 include/zero.h include/zero.hpp fortran/zero.f90 $(DESTDIR)$(INCLUDEDIR)/
	install -d $(DESTDIR)$(SCRIPT_DIR)/tokenizing
	install -m 755 launch/chat-template $(DESTDIR)$(SCRIPT_DIR)/
	install -m 644 $(addprefix launch/tokenizing/,chat.py faults.py records.py room.py special_tokens.py) $(DESTDIR)$(SCRIPT_DIR)/tokenizing/
	install -d $(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(MANDIR)/man3 $(DESTDIR)$(COMPLETION_DIR)
	install -m 644 $(BUILD)/docs/zerotrain.1 $(DESTDIR)$(MANDIR)/man1/
	install -m 644 $(BUILD)/docs/libzero.3 $(DESTDIR)$(MANDIR)/man3/
	install -m 644 $(BUILD)/docs/zerotrain.bash $(DESTDIR)$(COMPLETION_DIR)/zerotrain
uninstall:
	rm -f $(DESTDIR)$(BINDIR)/zerotrain $(DESTDIR)$(LIBDIR)/libzero.a $(DESTDIR)$(LIBDIR)/libzero.so* \
	    $(DESTDIR)$(LIBDIR)/pkgconfig/zero.pc $(addprefix $(DESTDIR)$(INCLUDEDIR)/,zero.h zero.hpp zero.f90) \
	    $(DESTDIR)$(MANDIR)/man1/zerotrain.1 $(DESTDIR)$(MANDIR)/man3/libzero.3 $(DESTDIR)$(COMPLETION_DIR)/zerotrain
	rm -rf $(DESTDIR)$(CMAKE_DIR) $(DESTDIR)$(SCRIPT_DIR)
