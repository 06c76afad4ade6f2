package e2e

import (
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file runs shard-selector, rate-limit, circuit-breaker and fault-inject in one chain: the effects of one plugin
// must not mislead another.

// TestAllPluginsWorkTogether runs an operator under faults, a rate limit and a breaker. Requests that a fault refuses
// cost no token, refusals by a fault are not failures of the API server, and in the end each object was handled once.
func TestAllPluginsWorkTogether(t *testing.T) {
	t.Parallel()
	set := newObjectSet(t, shared.controlPlane, "ConfigMap", 1, objectsLimited, "a")
	namespace, _ := splitKey(set.names[0])
	breaks := breakerSettings(namespace, sleepingWindow("60s"))
	breaks["rateLimitings"].([]jsonFields)[0]["resourceRules"] = []jsonFields{configMapsMatch(namespace, "create", "update")}
	chain := pluginChain(t, 1, map[string]jsonFields{
		faultInject: {"seed": 1, "faults": []jsonFields{
			{"name": "refused", "match": createsIn(namespace), "do": "refuse", "first": 2 * failuresToTrip},
			{"name": "lost", "match": createsIn(namespace), "do": jsonFields{"lose": jsonFields{"how": "error", "code": 500}}, "every": 3},
			{"name": "conflicts", "match": jsonFields{"resources": []jsonFields{configMapsMatch(namespace, "update")}}, "do": "conflict", "percent": 40},
		}},
		rateLimit: writeLimit(jsonFields{"queue": "30s"}), circuitBreaker: breaks,
	})
	selector := readPlugin(t, "shard-selector")
	chain.Entries = append(chain.Entries, sidecar.NewEntry("shard-selector/"+sidecar.Namespace, selector, shardRule("s0", "a")))
	chain = chain.WithPlugins(selector)
	s := startSidecar(t, sidecar.Options{Chain: &chain})
	op := startOperator(t, uniqueName("together"), sidecarKubeconfig(t, s), "--app="+set.app)
	begin := time.Now()
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, map[string]*operatorProcess{"a": op})

	events := auditedRequests(t, shared.controlPlane, namespace, writeVerbs...)
	assertWithinBucket(t, begin, events)
	for _, rule := range []string{"refused", "lost", "conflicts"} {
		if seen := readReport[faultReport](t, s, faultInject, rule); seen.Fired == 0 || seen.Fired >= seen.Matched {
			t.Errorf("fault %s reports %+v", rule, seen)
		}
	}
	passed := ruleMetric(t, s, "granted", "writes") + ruleMetric(t, s, "queued", "writes")
	if len(events) != passed {
		t.Errorf("%d writes took a token, the API server received %d", passed, len(events))
	}
	if seen := readReport[breakerState](t, s, circuitBreaker, "creates"); seen.State != "Closed" {
		t.Errorf("the breaker is %+v", seen)
	}
	list := must(shared.client.CoreV1().ConfigMaps(namespace).List(t.Context(), meta.ListOptions{}))(t)
	if len(list.Items) != 2*objectsLimited || op.countRecords(t, "twice") != 0 {
		t.Errorf("%d objects exist, %d steps were handled twice", len(list.Items), op.countRecords(t, "twice"))
	}
}

func createsIn(namespace string) jsonFields {
	return jsonFields{"resources": []jsonFields{configMapsMatch(namespace, "create")}}
}
