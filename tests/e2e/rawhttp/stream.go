package rawhttp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
)

// Stream is an answer whose body is read piece by piece: a watch, a log.
type Stream struct {
	Status int
	Header http.Header
	// Body as sent, without its transfer encoding.
	Body *bufio.Reader

	connection net.Conn
	body       io.Closer
}

// Open sends a request and returns as soon as the head of the answer is there.
func (t Target) Open(ctx context.Context, request Request) (*Stream, error) {
	connection, err := t.Dial(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := connection.Write(t.withAuthorization(request).Bytes()); err != nil {
		connection.Close()
		return nil, err
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), &http.Request{Method: request.Method})
	if err != nil {
		connection.Close()
		return nil, fmt.Errorf("no answer to %s: %w", request.Path, err)
	}
	return &Stream{
		Status: response.StatusCode, Header: response.Header, Body: bufio.NewReader(response.Body),
		connection: connection, body: response.Body,
	}, nil
}

// Line reads up to the next line feed, which is left out.
func (s *Stream) Line() ([]byte, error) {
	line, err := s.Body.ReadBytes('\n')
	if err != nil {
		return line, err
	}
	return line[:len(line)-1], nil
}

// Connection is the socket below, to set deadlines or to stop reading.
func (s *Stream) Connection() net.Conn { return s.connection }

// Close drops the connection, as a client does that goes away.
func (s *Stream) Close() { s.connection.Close() }
