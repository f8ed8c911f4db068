// The rules and dashboards beside this file, as a mixin for jsonnet 0.18 or later. To link the alerts to a page of yours:
//   (import 'mixin.libsonnet') + { _config+:: { kjbodRunbookBase: 'https://wiki.example/kjbod' } }
local installed = 'file:///opt/kjbod/share/kjbod/systemd/monitoring/alerts.md';
{
  _config+:: { kjbodRunbookBase: installed },
  local rules = std.parseYaml(std.strReplace(importstr 'kjbod.rules.yml', installed, $._config.kjbodRunbookBase)),
  local groups(name) = { groups+: [group for group in rules.groups if group.name == name] },
  prometheusRules+:: groups('kjbod-recording'),
  prometheusAlerts+:: groups('kjbod-alerts'),
  grafanaDashboards+:: {
    'kjbod-fleet.json': import 'dashboards/fleet.json',
    'kjbod-host.json': import 'dashboards/host.json',
  },
}
