package cluster

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"

	audit "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditPolicy notes every request once, when it is over, without bodies.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata}]
`

// ErrNotAudited says that the API server has not written the event yet; it does so when the request has ended.
var ErrNotAudited = errors.New("the API server has not audited this request yet")

// Audited finds what the API server noted of the request with this `Audit-ID` header: the request as it arrived.
func (c *Cluster) Audited(id string) (*audit.Event, error) {
	file, err := os.Open(c.file("audit.log"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 4<<20) // a request of the tests may have a target of many KiB
	for lines.Scan() {
		var event audit.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, ErrNotAudited // the last line is still being written
		}
		if string(event.AuditID) == id {
			return &event, nil
		}
	}
	return nil, errors.Join(ErrNotAudited, lines.Err())
}
