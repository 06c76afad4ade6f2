package e2e

import (
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file runs all four plugins in one chain: what one of them does must not mislead another.

// TestAllPlugins runs an operator under faults, behind a limit and a breaker. Requests that a fault refuses cost no token, what
// a fault tells a client is no failure of the API server, and in the end each object was handled once.
func TestAllPlugins(t *testing.T) {
	t.Parallel()
	f := newFleet(t, shared.controlPlane, "ConfigMap", 1, objectsLimited, "a")
	namespace, _ := split(f.names[0])
	breaks := breakerRule(namespace, sleeping("60s"))
	breaks["rateLimitings"].([]fields)[0]["resourceRules"] = []fields{inNamespace(namespace, "create", "update")}
	chain := pluginChain(t, 1, map[string]fields{
		faultInject: {"seed": 1, "faults": []fields{
			{"name": "refused", "match": creates(namespace), "do": "refuse", "first": 2 * tripAfter},
			{"name": "lost", "match": creates(namespace), "do": fields{"lose": fields{"how": "error", "code": 500}}, "every": 3},
			{"name": "conflicts", "match": fields{"resources": []fields{inNamespace(namespace, "update")}}, "do": "conflict", "percent": 40},
		}},
		rateLimit: writeRule(fields{"queue": "30s"}), circuitBreaker: breaks,
	})
	selector := plugin(t, "shard-selector")
	chain.Entries = append(chain.Entries, sidecar.NewEntry("shard-selector/"+sidecar.Namespace, selector, shardRule("s0", "a")))
	chain = chain.With(selector)
	s := startSidecar(t, sidecar.Options{Chain: &chain})
	o := startOperator(t, unique("together"), kubeconfig(t, s), "--app="+f.app)
	begin := time.Now()
	f.stepAll(t)
	f.settled(t, map[string]*operator{"a": o})

	events := arrived(t, shared.controlPlane, namespace, writeVerbs...)
	withinBucket(t, begin, events)
	for _, rule := range []string{"refused", "lost", "conflicts"} {
		if seen := report[struck](t, s, faultInject, rule); seen.Fired == 0 || seen.Fired >= seen.Matched {
			t.Errorf("fault %s tells %+v", rule, seen)
		}
	}
	passed := metric(t, s, "granted", "writes") + metric(t, s, "queued", "writes")
	if len(events) != passed {
		t.Errorf("%d writes took a token, the API server saw %d", passed, len(events))
	}
	if seen := report[breakerState](t, s, circuitBreaker, "creates"); seen.State != "Closed" {
		t.Errorf("the breaker is %+v", seen)
	}
	list := must(shared.client.CoreV1().ConfigMaps(namespace).List(t.Context(), meta.ListOptions{}))(t)
	if len(list.Items) != 2*objectsLimited || o.count(t, "twice") != 0 {
		t.Errorf("%d objects are there, %d steps were handled twice", len(list.Items), o.count(t, "twice"))
	}
}

func creates(namespace string) fields {
	return fields{"resources": []fields{inNamespace(namespace, "create")}}
}
