package story

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// This file has rules take effect in pods that run, and go away again.

const (
	// samples of how long a rule takes from `kubectl apply`, and the bound of nearly all of them.
	samples   = 24
	ruleBound = 3 * time.Second
	// firstCode of a status that no API server gives. Each sample has its own.
	firstCode = 460
	// askInterval is short beside what is measured.
	askInterval = 5 * time.Millisecond
)

const breaker = `
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

// fault is a rule for all pods of the operator.
func (o *operator) fault(name, resource, verb, namespace string, code int) string {
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
`, name, o.name, resource, verb, namespace, code)
}

// obeysBreaker: one that is held open for what the operator does in one namespace.
func (s *story) obeysBreaker(t *testing.T) {
	o := s.main
	pod := o.owner("team-a")
	address, end, err := o.node.Forward(t.Context(), o.name, pod, sidecarPort)
	check(t, err)
	defer end()
	s.apply(t, breaker)
	s.kubectl(t, "", "wait", "--namespace=operator", "--for=condition=Enforced", "circuitbreakers/writes", "--timeout="+patience.String())
	o.refused(t, "team-a", "POST /api/v1/namespaces/team-a/configmaps")
	if got := writes(t, address, "team-a"); got != http.StatusTooManyRequests {
		t.Errorf("a write gets %d", got)
	}
	s.kubectl(t, "", "delete", "--namespace=operator", "circuitbreakers/writes")
	eventually(t, "writes pass when the breaker is gone", func() error {
		if got := writes(t, address, "team-a"); got != http.StatusCreated {
			return fmt.Errorf("a write gets %d", got)
		}
		return nil
	})
	// The operator's own come half a minute later: client-go waits for as long as the breaker told it to.
}

// obeysFault: what the operator does in one namespace fails, until it does not.
func (s *story) obeysFault(t *testing.T) {
	s.apply(t, s.main.fault("updates", "configmaps", "update", "team-c", firstCode))
	s.kubectl(t, "", "wait", "--namespace=operator", "--for=condition=Enforced", "faultinjections/updates", "--timeout="+patience.String())
	s.main.refused(t, "team-c", strconv.Itoa(firstCode))
	s.kubectl(t, "", "delete", "--namespace=operator", "faultinjections/updates")
	eventually(t, "all objects are handled without rules", func() error { return s.main.unhandled(t, "") })
}

// refused asks for a step of every object, and waits until those of all namespaces but one are handled, and the operator is refused what
// it tries in that one.
func (o *operator) refused(t *testing.T, team, refusal string) {
	t.Helper()
	for key := range o.steps {
		check(t, o.step(t.Context(), key))
	}
	eventually(t, "the operator is refused", func() error {
		if journal := o.journal(t, o.owner(team)); !has(journal, "failed", refusal) {
			return fmt.Errorf("its journal has no failed %s", refusal)
		}
		return nil
	})
	eventually(t, "objects of other namespaces are handled", func() error { return o.unhandled(t, team) })
	if o.unhandled(t, "") == nil {
		t.Errorf("objects of %s are handled although the rule is in force", team)
	}
}

// writes is the code that a write in a namespace gets from a sidecar. It is never stored.
func writes(t *testing.T, address, namespace string) int {
	t.Helper()
	object := `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "asked"}}`
	url := "http://" + address + "/api/v1/namespaces/" + namespace + "/configmaps?dryRun=All"
	response := must(http.Post(url, "application/json", strings.NewReader(object)))(t)
	defer response.Body.Close()
	must(io.Copy(io.Discard, response.Body))(t)
	return response.StatusCode
}

// takesRulesSoon measures from `kubectl apply` to the last of all pods.
func (s *story) takesRulesSoon(t *testing.T) {
	o := s.main
	var addresses []string
	for _, pod := range o.pods() {
		address, end, err := o.node.Forward(t.Context(), o.name, pod, sidecarPort)
		check(t, err)
		defer end()
		addresses = append(addresses, address)
	}
	var all []time.Duration
	for i := range samples {
		begin := time.Now()
		s.apply(t, o.fault("timed", "configmaps", "list", "default", firstCode+i))
		for _, address := range addresses {
			answers(t, address, firstCode+i)
		}
		all = append(all, time.Since(begin))
	}
	s.kubectl(t, "", "delete", "--namespace=operator", "faultinjections/timed")
	for _, address := range addresses {
		answers(t, address, http.StatusOK)
	}
	t.Logf("from kubectl apply until the last of %d pods obeys: %s", len(addresses), figures(all))
	if p95 := percentile(all, 95); p95 > ruleBound {
		t.Errorf("a rule takes %s: %v", p95, all)
	}
}

// answers waits until a sidecar gives this code, which a rule of the sample alone explains.
func answers(t *testing.T, address string, code int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(askInterval)
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
			t.Fatalf("%s answers %s, not %d", address, response.Status, code)
		}
		<-tick.C
	}
}

// neverRestarted: all that was changed up to here came into pods that went on.
func (s *story) neverRestarted(t *testing.T) {
	now := s.main.incarnations(t)
	for pod, before := range s.born {
		if now[pod] != before {
			t.Errorf("%s was\n%s\nand is\n%s", pod, before, now[pod])
		}
	}
}

// incarnation tells containers of a pod from those that were there before.
func (o *operator) incarnation(t *testing.T, pod string) string {
	t.Helper()
	found := o.get(t, pod)
	ids := []string{string(found.UID)}
	for _, status := range append(found.Status.InitContainerStatuses, found.Status.ContainerStatuses...) {
		ids = append(ids, status.Name+" "+status.ContainerID)
	}
	return strings.Join(ids, "\n")
}

func (o *operator) incarnations(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pod := range o.pods() {
		found[pod] = o.incarnation(t, pod)
	}
	return found
}
