# Manual pages (mdoc). One line per page:
#   dist_man_MANS += man/kvsteerd.8
dist_man_MANS += man/kvsteer.conf.5
dist_man_MANS += man/kvsteer-engine.8
dist_man_MANS += man/kvsteer-engine.conf.5
dist_man_MANS += man/kvsteer-prefix.7
dist_man_MANS += man/kvsteerd.8
dist_man_MANS += man/kvsteerctl.8
dist_man_MANS += man/kvsteer-bench.1
