package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	audit "k8s.io/apiserver/pkg/apis/audit/v1"
)

// This file makes chains of rate-limit, circuit-breaker and fault-inject, and reads what they report and what the API
// server received.

// jsonFields is a JSON object of a plugin's settings.
type jsonFields = map[string]any

// The built-in plugins in the order of the chain: faults come before the plugins that react to them.
const (
	faultInject    = "fault-inject"
	rateLimit      = "rate-limit"
	circuitBreaker = "circuit-breaker"
)

// pluginChain runs built-in plugins with these settings, in their default order.
func pluginChain(t *testing.T, generation int64, settings map[string]jsonFields) sidecar.Chain {
	t.Helper()
	chain := sidecar.NewChain(generation)
	for i, name := range []string{faultInject, rateLimit, circuitBreaker} {
		if settings[name] == nil {
			continue
		}
		code := readPlugin(t, name)
		entry := sidecar.NewEntry(name+"/"+sidecar.Namespace, code, settings[name])
		entry.Order = 100 * (i + 1)
		chain.Entries = append(chain.Entries, entry)
		chain = chain.WithPlugins(code)
	}
	return chain
}

// startPlugin runs a sidecar with one built-in plugin.
func startPlugin(t *testing.T, name string, settings jsonFields) *sidecar.Sidecar {
	t.Helper()
	chain := pluginChain(t, 1, map[string]jsonFields{name: settings})
	return startSidecar(t, sidecar.Options{Chain: &chain})
}

// configMapsMatch matches ConfigMaps of one namespace.
func configMapsMatch(namespace string, verbs ...string) jsonFields {
	return jsonFields{"apiGroups": []string{""}, "resources": []string{"configmaps"}, "verbs": verbs, "namespaces": []string{namespace}}
}

// readReport reads a plugin's report about one of its rules from /status.
func readReport[T any](t *testing.T, s *sidecar.Sidecar, plugin, rule string) T {
	t.Helper()
	status := must(s.Status(t.Context()))(t)
	var found T
	for _, entry := range status.Chain.Entries {
		if entry.Name == plugin+"/"+sidecar.Namespace && entry.Reports[rule] != nil {
			check(t, json.Unmarshal(entry.Reports[rule], &found))
			return found
		}
	}
	t.Fatalf("%s has no report about rule %s: %s", plugin, rule, status.Raw)
	return found
}

// ruleMetric returns a plugin's counter for one of its rules.
func ruleMetric(t *testing.T, s *sidecar.Sidecar, name, rule string) int {
	t.Helper()
	value := must(s.Metric(t.Context(), "ctrlmesh_plugin_"+name+"_total", fmt.Sprintf("label=%q", rule)))(t)
	return int(value)
}

// auditedRequests returns the requests of controllers behind sidecars in a namespace, by verb, from the audit log. It
// waits until every earlier request is logged.
func auditedRequests(t *testing.T, plane controlPlane, namespace string, verbs ...string) []audit.Event {
	t.Helper()
	marker := uniqueName("marker")
	if _, err := plane.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), marker, meta.GetOptions{}); !errors.IsNotFound(err) {
		t.Fatalf("%s: %v", marker, err)
	}
	var found []audit.Event
	eventually(t, "the audit log is complete", func() error {
		events, err := plane.cluster.AuditEventsIn(namespace)
		if err != nil {
			return err
		}
		found = found[:0]
		isNoted := false
		for _, event := range events {
			isNoted = isNoted || event.ObjectRef.Name == marker
			for _, verb := range verbs {
				if event.Verb == verb && event.User.Username == sidecarUser {
					found = append(found, event)
				}
			}
		}
		if !isNoted {
			return fmt.Errorf("%s is not audited yet", marker)
		}
		return nil
	})
	return found
}
