package e2e

import (
	"fmt"
	"strings"
)

// This file writes objects of our kinds, as people do.

// shardConfig gives the pods with the label shard=<name> the objects of the fleet's kinds that have one of the values in their
// label `shard`, and a lock of their own.
func shardConfig(name string, values ...string) string {
	return fmt.Sprintf(`
kind: ShardingConfig
metadata: {name: %s}
spec:
  selector: {matchLabels: {shard: %s}}
  controller: {leaderElectionName: %s}
  limits:
  - relateResources: [{apiGroups: ["", e2e.ctrlmesh.dev], resources: [configmaps, widgets]}]
    selector: {matchExpressions: [{key: shard, operator: In, values: [%s]}]}
`, name, name, lockName, strings.Join(values, ", "))
}

// breakerConfig has, for all pods, a breaker that is closed and one that is held open, both for what no operator does here.
func breakerConfig(name string) string {
	return fmt.Sprintf(`
kind: CircuitBreaker
metadata: {name: %s}
spec:
  selector: {matchLabels: {app: operator}}
  rateLimitings:
  - name: secrets
    triggerPolicy: Normal
    trip: {consecutiveFailures: 3}
    recoverPolicy: {type: SleepingWindow, sleepingWindowSize: 30s}
    resourceRules: [{apiGroups: [""], resources: [secrets], verbs: [create], namespaces: ["*"]}]
  - name: nodes
    triggerPolicy: ForceOpened
    resourceRules: [{apiGroups: [""], resources: [nodes], verbs: [delete], namespaces: ["*"]}]
`, name)
}

// faultConfig refuses, for the pods of one shard, what no operator does here.
func faultConfig(name, shard string) string {
	return fmt.Sprintf(`
kind: FaultInjection
metadata: {name: %s}
spec:
  selector: {matchLabels: {shard: %s}}
  httpFault:
  - name: no-services
    abort: {httpStatus: 503, percent: "100"}
    match: {resources: [{apiGroups: [""], resources: [services], verbs: [create], namespaces: ["*"]}]}
`, name, shard)
}
