package rawhttp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
)

// Stream is a response whose body is read piece by piece, such as a watch or a log.
type Stream struct {
	Status int
	Header http.Header
	// Body is the body without its transfer encoding.
	Body *bufio.Reader

	connection net.Conn
	body       io.Closer
}

// Open sends a request and returns as soon as the response's head has arrived.
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
		return nil, fmt.Errorf("no response to %s: %w", request.Path, err)
	}
	return &Stream{
		Status: response.StatusCode, Header: response.Header, Body: bufio.NewReader(response.Body),
		connection: connection, body: response.Body,
	}, nil
}

// Line reads the next line, without its line feed.
func (s *Stream) Line() ([]byte, error) {
	line, err := s.Body.ReadBytes('\n')
	if err != nil {
		return line, err
	}
	return line[:len(line)-1], nil
}

// Connection is the underlying socket, for deadlines, or to stop reading.
func (s *Stream) Connection() net.Conn { return s.connection }

// Close closes the connection, like a client that disconnects.
func (s *Stream) Close() { s.connection.Close() }
