package e2e

import (
	"fmt"
	"strings"
)

// This file writes ctrlmesh objects as YAML, as people do.

// shardConfig gives the pods with the label shard=<name> the ConfigMaps and Widgets that have one of the values in
// their label `shard`, and a separate lock.
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

// breakerConfig has a closed breaker and one that is forced open for all pods, both for requests that no operator sends
// here.
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

// faultConfig refuses, for the pods of one shard, requests that no operator sends here.
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
