package lifecycle

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// This file applies rules to running pods and removes them again.

const (
	// ruleSamples is how often the latency of a rule is measured, ruleBound the bound of its 95th percentile.
	ruleSamples = 24
	ruleBound   = 3 * time.Second
	// firstStatusCode begins a range of codes that no API server sends. Each sample has its own.
	firstStatusCode = 460
	// requestInterval is short compared to the measured times.
	requestInterval = 5 * time.Millisecond
)

const breakerManifest = `
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: CircuitBreaker
metadata: {name: writes, namespace: operator}
spec:
  selector: {matchLabels: {app: operator}}
  rateLimitings:
  - name: team-a
    triggerPolicy: ForceOpened
    resourceRules: [{apiGroups: [""], resources: [configmaps], verbs: [create], namespaces: [team-a]}]
`

// faultManifest is a fault for all pods of the operator.
func (op *operator) faultManifest(name, resource, verb, namespace string, code int) string {
	return fmt.Sprintf(`
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: FaultInjection
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  selector: {matchLabels: {app: %[2]s}}
  httpFault:
  - name: refused
    match: {resources: [{apiGroups: [""], resources: [%[3]s], verbs: [%[4]s], namespaces: [%[5]s]}]}
    abort: {httpStatus: %[6]d, percent: "100"}
`, name, op.name, resource, verb, namespace, code)
}

// testBreaker forces a breaker open for the operator's requests in one namespace.
func (l *lifecycle) testBreaker(t *testing.T) {
	op := l.mainOperator
	pod := op.ownerPod("team-a")
	address, end, err := op.node.Forward(t.Context(), op.name, pod, sidecarPort)
	check(t, err)
	defer end()
	l.apply(t, breakerManifest)
	l.kubectl(t, "", "wait", "--namespace=operator", "--for=condition=Enforced", "circuitbreakers/writes", "--timeout="+waitTimeout.String())
	op.waitRefused(t, "team-a", "POST /api/v1/namespaces/team-a/configmaps")
	if got := writeCode(t, address, "team-a"); got != http.StatusTooManyRequests {
		t.Errorf("a write returns %d", got)
	}
	l.kubectl(t, "", "delete", "--namespace=operator", "circuitbreakers/writes")
	eventually(t, "writes pass when the breaker is deleted", func() error {
		if got := writeCode(t, address, "team-a"); got != http.StatusCreated {
			return fmt.Errorf("a write still returns %d", got)
		}
		return nil
	})
	// The operator itself continues half a minute later, because client-go waits as long as the breaker's response
	// says.
}

// testFault: the operator's requests in one namespace fail until the fault is deleted.
func (l *lifecycle) testFault(t *testing.T) {
	l.apply(t, l.mainOperator.faultManifest("updates", "configmaps", "update", "team-c", firstStatusCode))
	l.kubectl(t, "", "wait", "--namespace=operator", "--for=condition=Enforced", "faultinjections/updates", "--timeout="+waitTimeout.String())
	l.mainOperator.waitRefused(t, "team-c", strconv.Itoa(firstStatusCode))
	l.kubectl(t, "", "delete", "--namespace=operator", "faultinjections/updates")
	eventually(t, "all objects are handled without rules", func() error { return l.mainOperator.checkHandled(t, "") })
}

// waitRefused requests a step of every object, and waits until those of all other namespaces are handled, and the
// operator's requests in this namespace are refused.
func (op *operator) waitRefused(t *testing.T, team, refusal string) {
	t.Helper()
	for key := range op.steps {
		check(t, op.requestStep(t.Context(), key))
	}
	eventually(t, "the operator is refused", func() error {
		if journal := op.journal(t, op.ownerPod(team)); !hasRecord(journal, "failed", refusal) {
			return fmt.Errorf("the journal has no failed %s", refusal)
		}
		return nil
	})
	eventually(t, "objects of other namespaces are handled", func() error { return op.checkHandled(t, team) })
	if op.checkHandled(t, "") == nil {
		t.Errorf("objects of %s are handled although the rule is in force", team)
	}
}

// writeCode returns a sidecar's status code for a dry-run write in a namespace.
func writeCode(t *testing.T, address, namespace string) int {
	t.Helper()
	object := `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "asked"}}`
	url := "http://" + address + "/api/v1/namespaces/" + namespace + "/configmaps?dryRun=All"
	response := must(http.Post(url, "application/json", strings.NewReader(object)))(t)
	defer response.Body.Close()
	must(io.Copy(io.Discard, response.Body))(t)
	return response.StatusCode
}

// testRuleLatency measures the time from `kubectl apply` to the last of all pods.
func (l *lifecycle) testRuleLatency(t *testing.T) {
	op := l.mainOperator
	var addresses []string
	for _, pod := range op.podNames() {
		address, end, err := op.node.Forward(t.Context(), op.name, pod, sidecarPort)
		check(t, err)
		defer end()
		addresses = append(addresses, address)
	}
	var all []time.Duration
	for i := range ruleSamples {
		begin := time.Now()
		l.apply(t, op.faultManifest("timed", "configmaps", "list", "default", firstStatusCode+i))
		for _, address := range addresses {
			waitStatusCode(t, address, firstStatusCode+i)
		}
		all = append(all, time.Since(begin))
	}
	l.kubectl(t, "", "delete", "--namespace=operator", "faultinjections/timed")
	for _, address := range addresses {
		waitStatusCode(t, address, http.StatusOK)
	}
	t.Logf("from kubectl apply until the last of %d pods enforces it: %s", len(addresses), summary(all))
	if p95 := percentile(all, 95); p95 > ruleBound {
		t.Errorf("a rule takes %s: %v", p95, all)
	}
}

// waitStatusCode waits until a sidecar responds with this code, which only the rule of the sample can cause.
func waitStatusCode(t *testing.T, address string, code int) {
	t.Helper()
	deadline := time.Now().Add(waitTimeout)
	tick := time.NewTicker(requestInterval)
	defer tick.Stop()
	for {
		response := must(http.Get("http://" + address + "/api/v1/namespaces/default/configmaps"))(t)
		_, err := io.Copy(io.Discard, response.Body)
		check(t, err)
		response.Body.Close()
		if response.StatusCode == code {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s responds %s, not %d", address, response.Status, code)
		}
		<-tick.C
	}
}

// assertNotRestarted: every change so far took effect in running pods.
func (l *lifecycle) assertNotRestarted(t *testing.T) {
	now := l.mainOperator.allContainers(t)
	for pod, before := range l.firstContainers {
		if now[pod] != before {
			t.Errorf("%s was\n%s\nand is\n%s", pod, before, now[pod])
		}
	}
}

// containersOf identifies the containers of a pod: it changes when one is restarted or the pod is re-created.
func (op *operator) containersOf(t *testing.T, pod string) string {
	t.Helper()
	found := op.getPod(t, pod)
	ids := []string{string(found.UID)}
	for _, status := range append(found.Status.InitContainerStatuses, found.Status.ContainerStatuses...) {
		ids = append(ids, status.Name+" "+status.ContainerID)
	}
	return strings.Join(ids, "\n")
}

func (op *operator) allContainers(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pod := range op.podNames() {
		found[pod] = op.containersOf(t, pod)
	}
	return found
}
