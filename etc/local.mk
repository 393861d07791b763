# Configuration, units and users, as they are installed. One line per file:
#   CONF_FILES += etc/kvsteer.conf       into SYSCONFDIR/kvsteer, never over an existing file
#   UNITS += etc/kvsteer.service         made from etc/kvsteer.service.in, where @sbindir@,
#                                        @bindir@ and @sysconfdir@ are replaced
#   UNITS_IN += etc/kvsteer.service.in
#   SYSUSERS += etc/kvsteer.sysusers     as PREFIX/lib/sysusers.d/kvsteer.conf
#   LOGROTATE += etc/kvsteer.logrotate   as SYSCONFDIR/logrotate.d/kvsteer

CONF_FILES =
UNITS =
UNITS_IN =
SYSUSERS =
LOGROTATE =
CONF_FILES += etc/kvsteer.conf
CONF_FILES += etc/kvsteer-engine.conf
UNITS += etc/kvsteer.service
UNITS_IN += etc/kvsteer.service.in
UNITS += etc/kvsteer-engine.service
UNITS_IN += etc/kvsteer-engine.service.in
UNITS += etc/kvsteer-engine@.service
UNITS_IN += etc/kvsteer-engine@.service.in
SYSUSERS += etc/kvsteer.sysusers
SYSUSERS += etc/kvsteer-engine.sysusers
LOGROTATE += etc/kvsteer.logrotate

# bash looks a completion up by the command's name. The engine may be installed alone.
BASH_COMPLETION = etc/kvsteer.bash-completion
COMPLETED = kvsteerctl kvsteerd kvsteer-bench kvsteer-engine

SUFFIXES += .service.in .service
.service.in.service:
	$(AM_V_GEN)$(MKDIR_P) $(@D) && $(SED) -e 's|@sbindir[@]|$(sbindir)|g' \
		-e 's|@bindir[@]|$(bindir)|g' -e 's|@sysconfdir[@]|$(sysconfdir)|g' \
		<$< >$@.tmp && mv $@.tmp $@
# What a client that sends hashes may copy: beside the other documents.
clientsdir = $(docdir)/examples
dist_clients_DATA = etc/clients/kvsteer_prefix.py etc/clients/kvsteer_prefix.c etc/clients/kvsteer_prefix.h
# What an operator may copy.
grafanadir = $(docdir)/examples/grafana
dist_grafana_DATA = etc/grafana/kvsteer.json
prometheusdir = $(docdir)/examples/prometheus
dist_prometheus_DATA = etc/prometheus/kvsteer.rules.yml
nginxdir = $(docdir)/examples/nginx
dist_nginx_DATA = etc/nginx/kvsteer.conf
kubernetesdir = $(docdir)/examples/kubernetes
dist_kubernetes_DATA = etc/kubernetes/kvsteer.yaml
dockerdir = $(docdir)/examples/docker
dist_docker_DATA = etc/docker/Dockerfile
EXTRA_DIST += $(CONF_FILES) $(UNITS_IN) $(SYSUSERS) $(LOGROTATE) $(BASH_COMPLETION)
CLEANFILES += $(UNITS)
if SYSTEMD
systemdsystemunit_DATA = $(UNITS)
else
noinst_DATA = $(UNITS)
endif

install-data-local:
	@$(MKDIR_P) "$(DESTDIR)$(sysconfdir)/kvsteer/conf.d" "$(DESTDIR)$(sysconfdir)/kvsteer/engine"
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
	@for file in $(LOGROTATE); do \
		name=$${file##*/}; \
		to="$(DESTDIR)$(sysconfdir)/logrotate.d"; \
		$(MKDIR_P) "$$to" || exit 1; \
		test -e "$$to/$${name%.*}" || \
			$(INSTALL_DATA) "$(srcdir)/$$file" "$$to/$${name%.*}" || exit 1; \
	done
	@for name in $(COMPLETED); do \
		to="$(DESTDIR)$(datadir)/bash-completion/completions"; \
		$(MKDIR_P) "$$to" && \
		$(INSTALL_DATA) "$(srcdir)/$(BASH_COMPLETION)" "$$to/$$name" || exit 1; \
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
	@rmdir "$(DESTDIR)$(sysconfdir)/kvsteer/conf.d" "$(DESTDIR)$(sysconfdir)/kvsteer/engine" \
		2>/dev/null || :
	@for file in $(LOGROTATE); do \
		name=$${file##*/}; \
		at="$(DESTDIR)$(sysconfdir)/logrotate.d/$${name%.*}"; \
		if cmp -s "$(srcdir)/$$file" "$$at"; then rm -f "$$at"; fi; \
	done
	@for name in $(COMPLETED); do \
		rm -f "$(DESTDIR)$(datadir)/bash-completion/completions/$$name"; \
	done
