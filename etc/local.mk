# Configuration, units and users, as they are installed.

pkgsysconfdir = $(sysconfdir)/kvsteer
dist_pkgsysconf_DATA =
systemdsystemunit_DATA =
dist_sysusers_DATA =
UNITS_IN =

SUFFIXES += .service.in .service
.service.in.service:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(SED) -e 's|@sbindir[@]|$(sbindir)|g' \
		-e 's|@bindir[@]|$(bindir)|g' -e 's|@sysconfdir[@]|$(sysconfdir)|g' \
		<$< >$@.tmp && mv $@.tmp $@
EXTRA_DIST += $(UNITS_IN)
CLEANFILES += $(systemdsystemunit_DATA)
