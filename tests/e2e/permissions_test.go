package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/manager"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	audit "k8s.io/apiserver/pkg/apis/audit/v1"
)

// This file compares the requests of managers in the whole run with the shipped RBAC rules: no request may have been
// forbidden, and no permission may be unused.

// permission allows one verb on one resource. Namespaced permissions hold only in the manager's namespace.
type permission struct {
	isNamespaced          bool
	group, resource, verb string
	// names are resource names, separated by commas; empty means all.
	names string
}

func (p permission) String() string {
	scope := "everywhere"
	if p.isNamespaced {
		scope = "in " + manager.Namespace
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s.%s %s %s", p.verb, p.resource, p.group, scope, p.names))
}

// usedPermissions records which permissions of the run were used.
var usedPermissions = struct {
	sync.Mutex
	used map[permission]bool
}{used: map[permission]bool{}}

// seldomUsed are permissions that tests may leave unused, with the reason.
var seldomUsed = []exemption{
	{"", []string{"endpoints", "persistentvolumeclaims", "services"}, labelVerbs, labelReason},
	{"apps", []string{"controllerrevisions", "deployments", "replicasets", "statefulsets"}, labelVerbs, labelReason},
	{"apps.kusionstack.io", []string{"collasets", "operationjobs", "poddecorations", "podtransitionrules", "resourcecontexts"}, labelVerbs, labelReason},
	{"", []string{"configmaps"}, []string{"get"}, "plugins that another version of the manager distributed are kept"},
	{"", []string{"namespaces"}, []string{"get"}, "admission asks of a namespace that was not seen yet"},
	{"ctrlmesh.kusionstack.io", []string{"shardingconfigs", "circuitbreakers", "faultinjections"}, []string{"patch"}, "finalizers that KusionStack left are removed"},
	{"ctrlmesh.kusionstack.io", []string{"shardingconfigs/finalizers"}, []string{"update"}, "asked for by an admission plugin that not every cluster has"},
}

var labelVerbs = []string{"list", "watch", "patch"}

const labelReason = "kinds that are labelled where a cluster has such objects"

// exemption is for permissions in all namespaces. Those in the manager's own namespace must all be used.
type exemption struct {
	group            string
	resources, verbs []string
	reason           string
}

func (p permission) isSeldom() bool {
	return !p.isNamespaced && slices.ContainsFunc(seldomUsed, func(s exemption) bool {
		return s.group == p.group && slices.Contains(s.resources, p.resource) && slices.Contains(s.verbs, p.verb)
	})
}

// assertPermissionsSuffice reads the audit log of a cluster at the end of a test.
func assertPermissionsSuffice(t *testing.T, m *mesh) {
	t.Helper()
	events, err := m.cluster.AuditEventsOf(manager.User)
	check(t, err)
	for _, event := range events {
		if event.Annotations["authorization.k8s.io/decision"] == "forbid" {
			t.Errorf("the manager was not allowed to %s %s: %s", event.Verb, event.RequestURI, event.Annotations["authorization.k8s.io/reason"])
		}
	}
	granted := grantedPermissions(t, m)
	usedPermissions.Lock()
	defer usedPermissions.Unlock()
	for _, p := range granted {
		usedPermissions.used[p] = usedPermissions.used[p]
	}
	for _, event := range events {
		for _, p := range granted {
			if p.covers(event) {
				usedPermissions.used[p] = true
			}
		}
	}
}

// grantedPermissions returns the permissions that are bound to the manager's account.
func grantedPermissions(t *testing.T, m *mesh) []permission {
	t.Helper()
	list := []permission{}
	bound := func(subjects []rbac.Subject) bool {
		return slices.ContainsFunc(subjects, func(s rbac.Subject) bool {
			return s.Kind == rbac.ServiceAccountKind && s.Namespace == manager.Namespace && s.Name == manager.ServiceAccount
		})
	}
	everywhere := must(m.client.RbacV1().ClusterRoleBindings().List(background(), meta.ListOptions{}))(t)
	for _, binding := range everywhere.Items {
		if bound(binding.Subjects) {
			role := must(m.client.RbacV1().ClusterRoles().Get(background(), binding.RoleRef.Name, meta.GetOptions{}))(t)
			list = append(list, permissionsOfRules(role.Rules, false)...)
		}
	}
	here := must(m.client.RbacV1().RoleBindings(manager.Namespace).List(background(), meta.ListOptions{}))(t)
	for _, binding := range here.Items {
		if bound(binding.Subjects) {
			role := must(m.client.RbacV1().Roles(manager.Namespace).Get(background(), binding.RoleRef.Name, meta.GetOptions{}))(t)
			list = append(list, permissionsOfRules(role.Rules, true)...)
		}
	}
	if len(list) == 0 {
		t.Error("nothing is bound to the manager's account")
	}
	return list
}

func permissionsOfRules(rules []rbac.PolicyRule, isNamespaced bool) []permission {
	list := []permission{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					list = append(list, permission{isNamespaced, group, resource, verb, strings.Join(rule.ResourceNames, ",")})
				}
			}
		}
	}
	return list
}

// covers returns whether a request used the permission. Creating an object by server-side apply also needs `create`.
func (p permission) covers(event audit.Event) bool {
	about := event.ObjectRef
	if about == nil || p.isNamespaced != (about.Namespace == manager.Namespace) {
		return false
	}
	resource := about.Resource
	if about.Subresource != "" {
		resource += "/" + about.Subresource
	}
	if p.names != "" && !slices.Contains(strings.Split(p.names, ","), about.Name) {
		return false
	}
	isMade := p.verb == "create" && event.Verb == "patch" && event.ResponseStatus != nil && event.ResponseStatus.Code == 201
	return matchesPattern(p.group, about.APIGroup) && matchesPattern(p.resource, resource) && (matchesPattern(p.verb, event.Verb) || isMade)
}

func matchesPattern(pattern, value string) bool { return pattern == "*" || pattern == value }

// unusedPermissions returns the permissions that no manager of the run used.
func unusedPermissions() []string {
	usedPermissions.Lock()
	defer usedPermissions.Unlock()
	unused := []string{}
	for _, p := range slices.Collect(maps.Keys(usedPermissions.used)) {
		if !usedPermissions.used[p] && !p.isSeldom() {
			unused = append(unused, p.String())
		}
	}
	slices.SortFunc(unused, strings.Compare)
	return unused
}
