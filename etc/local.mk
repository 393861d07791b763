# Configuration, units and users, as they are installed. One line per file:
#   CONF_FILES += etc/kvsteer.conf       into SYSCONFDIR/kvsteer, never over an existing file
#   UNITS += etc/kvsteer.service         made from etc/kvsteer.service.in, where @sbindir@,
#                                        @bindir@ and @sysconfdir@ are replaced
#   UNITS_IN += etc/kvsteer.service.in
#   SYSUSERS += etc/kvsteer.sysusers     as PREFIX/lib/sysusers.d/kvsteer.conf

CONF_FILES =
UNITS =
UNITS_IN =
SYSUSERS =
CONF_FILES += etc/kvsteer.conf

SUFFIXES += .service.in .service
.service.in.service:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(SED) -e 's|@sbindir[@]|$(sbindir)|g' \
		-e 's|@bindir[@]|$(bindir)|g' -e 's|@sysconfdir[@]|$(sysconfdir)|g' \
		<$< >$@.tmp && mv $@.tmp $@
EXTRA_DIST += $(CONF_FILES) $(UNITS_IN) $(SYSUSERS)
CLEANFILES += $(UNITS)
if SYSTEMD
systemdsystemunit_DATA = $(UNITS)
else
noinst_DATA = $(UNITS)
endif

install-data-local:
	@for file in $(CONF_FILES); do \
		to="$(DESTDIR)$(sysconfdir)/kvsteer"; \
		$(MKDIR_P) "$$to" || exit 1; \
		test -e "$$to/$${file##*/}" || \
			$(INSTALL_DATA) "$(srcdir)/$$file" "$$to" || exit 1; \
	done
	@for file in $(SYSUSERS); do \
		name=$${file##*/}; \
		to="$(DESTDIR)$(sysusersdir)"; \
		$(MKDIR_P) "$$to" && \
		$(INSTALL_DATA) "$(srcdir)/$$file" "$$to/$${name%.*}.conf" || exit 1; \
	done

# What an operator changed stays.
uninstall-local:
	@for file in $(CONF_FILES); do \
		at="$(DESTDIR)$(sysconfdir)/kvsteer/$${file##*/}"; \
		if cmp -s "$(srcdir)/$$file" "$$at"; then rm -f "$$at"; fi; \
	done
	@for file in $(SYSUSERS); do \
		name=$${file##*/}; \
		rm -f "$(DESTDIR)$(sysusersdir)/$${name%.*}.conf"; \
	done
