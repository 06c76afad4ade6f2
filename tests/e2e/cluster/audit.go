package cluster

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"

	audit "k8s.io/apiserver/pkg/apis/audit/v1"
)

// NamespaceWithBodies is the namespace in which the audit log has the bodies of requests. A test that needs them creates
// it.
const NamespaceWithBodies = "audited-with-bodies"

// auditPolicy logs every request once, when it has ended.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {level: Request, namespaces: [` + NamespaceWithBodies + `]}
- {level: Metadata}
`

// ErrNotAudited means that the API server has not written the event yet; it does so when the request has ended.
var ErrNotAudited = errors.New("the API server has not audited this request yet")

// AuditEvent returns the audit event of the request with this `Audit-ID` header: the request as it arrived at the API
// server.
func (c *Cluster) AuditEvent(id string) (*audit.Event, error) {
	events, err := c.auditLog(id)
	if err != nil {
		return nil, err
	}
	for _, event := range events {
		if string(event.AuditID) == id {
			return &event, nil
		}
	}
	return nil, ErrNotAudited
}

// AuditEventsIn returns the audit events of a namespace's objects, in the order in which the requests ended.
func (c *Cluster) AuditEventsIn(namespace string) ([]audit.Event, error) {
	events, err := c.auditLog(`"` + namespace + `"`)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(events, func(event audit.Event) bool {
		return event.ObjectRef == nil || event.ObjectRef.Namespace != namespace
	}), nil
}

// AuditEventsOf returns the audit events of a user, in the order in which the requests ended.
func (c *Cluster) AuditEventsOf(user string) ([]audit.Event, error) {
	events, err := c.auditLog(`"` + user + `"`)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(events, func(event audit.Event) bool { return event.User.Username != user }), nil
}

// auditLog decodes only lines that contain the text; decoding the whole log of a long run would take seconds.
func (c *Cluster) auditLog(text string) ([]audit.Event, error) {
	file, err := os.Open(c.path("audit.log"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 4<<20) // some tests send targets of many KiB
	var events []audit.Event
	for lines.Scan() {
		if !bytes.Contains(lines.Bytes(), []byte(text)) {
			continue
		}
		var event audit.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			break // the last line is still being written
		}
		events = append(events, event)
	}
	return events, lines.Err()
}
