// Package metrics parses the Prometheus metrics of programs under test.
package metrics

import (
	"bufio"
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Sum adds the values of a metric's series whose labels contain each of the given label pairs (`code="500"`).
func Sum(text []byte, name string, labels ...string) (float64, error) {
	sum := 0.0
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		series, value, found := cutLast(lines.Text(), ' ')
		if !found || !isSeries(series, name, labels) {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric line %q: %w", lines.Text(), err)
		}
		sum += number
	}
	return sum, lines.Err()
}

func isSeries(series, name string, labels []string) bool {
	metric, rest, _ := strings.Cut(series, "{")
	if metric != name {
		return false
	}
	for _, label := range labels {
		if !strings.Contains(rest, label) {
			return false
		}
	}
	return true
}

func cutLast(text string, separator byte) (before, after string, found bool) {
	at := strings.LastIndexByte(text, separator)
	if at < 0 {
		return text, "", false
	}
	return text[:at], text[at+1:], true
}
