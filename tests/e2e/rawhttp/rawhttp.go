// Package rawhttp sends HTTP/1.1 over a socket, byte for byte as a test wrote it.
//
// net/http would clean paths, refuse unusual headers and sort them. Use this package where the exact bytes matter, and
// an ordinary client for everything else.
package rawhttp

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Deadline bounds a whole exchange. It is longer than the sidecar's time limits for slow requests, so that a test sees
// the sidecar's response and not its own timeout.
const Deadline = 30 * time.Second

// Target is a server, with its TLS configuration if it uses TLS.
type Target struct {
	Address string
	TLS     *tls.Config
	// HTTP2 uses HTTP/2 without TLS, with prior knowledge; only Do supports it.
	HTTP2 bool
	// Authorization is used for requests without this header.
	Authorization string
}

// Request is written unchanged. Zero values give `GET`, a Host header and `Connection: close`.
type Request struct {
	Method string
	// Path is the request target: path and query, or an absolute URL.
	Path string
	// Headers are whole lines without CRLF, sent in this order.
	Headers []string
	Body    []byte
}

// Bytes returns the request. Host, Connection and Content-Length are added if no header names them.
func (r Request) Bytes() []byte {
	var out bytes.Buffer
	method := r.Method
	if method == "" {
		method = http.MethodGet
	}
	fmt.Fprintf(&out, "%s %s HTTP/1.1\r\n", method, r.Path)
	if !r.hasHeader("host") {
		out.WriteString("Host: localhost\r\n")
	}
	if !r.hasHeader("connection") {
		out.WriteString("Connection: close\r\n")
	}
	if len(r.Body) > 0 && !r.hasHeader("content-length") && !r.hasHeader("transfer-encoding") {
		fmt.Fprintf(&out, "Content-Length: %d\r\n", len(r.Body))
	}
	for _, line := range r.Headers {
		out.WriteString(line + "\r\n")
	}
	out.WriteString("\r\n")
	out.Write(r.Body)
	return out.Bytes()
}

func (r Request) hasHeader(header string) bool {
	for _, line := range r.Headers {
		if name, _, _ := strings.Cut(line, ":"); strings.EqualFold(name, header) {
			return true
		}
	}
	return false
}

// Response is a response with its whole body.
type Response struct {
	Status int
	Header http.Header
	// Body is the body without its transfer encoding.
	Body    []byte
	Trailer http.Header
}

// Text returns the body, decompressed if it was gzip.
func (r *Response) Text() ([]byte, error) {
	if r.Header.Get("Content-Encoding") != "gzip" {
		return r.Body, nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}

// ErrClosed means that the server closed the connection without a response.
var ErrClosed = errors.New("the server closed the connection without a response")

// Dial opens a connection that expires after Deadline.
func (t Target) Dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: Deadline}
	connection, err := dialer.DialContext(ctx, "tcp", t.Address)
	if err != nil {
		return nil, err
	}
	if err := connection.SetDeadline(time.Now().Add(Deadline)); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	if t.TLS == nil {
		return connection, nil
	}
	config := t.TLS.Clone()
	config.NextProtos = []string{"http/1.1"}
	return tls.Client(connection, config), nil
}

// Do sends one request on a new connection and reads the whole response.
func (t Target) Do(ctx context.Context, request Request) (*Response, error) {
	if t.HTTP2 {
		return t.doHTTP2(ctx, request)
	}
	return t.Send(ctx, t.withAuthorization(request).Bytes(), request.Method)
}

func (t Target) withAuthorization(request Request) Request {
	if t.Authorization != "" && !request.hasHeader("authorization") {
		request.Headers = append(slices.Clone(request.Headers), "Authorization: "+t.Authorization)
	}
	return request
}

// Send writes the bytes on a new connection and reads one response. The method decides whether a body follows.
func (t Target) Send(ctx context.Context, raw []byte, method string) (*Response, error) {
	connection, err := t.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if _, err := connection.Write(raw); err != nil && !isReset(err) {
		return nil, err // a reset may still leave a response to read
	}
	return Read(bufio.NewReader(connection), method)
}

// Read reads one final response from the connection and skips 1xx responses.
func Read(reader *bufio.Reader, method string) (*Response, error) {
	for {
		response, err := http.ReadResponse(reader, &http.Request{Method: method})
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isReset(err) {
				return nil, fmt.Errorf("%w (%w)", ErrClosed, err)
			}
			return nil, err
		}
		if response.StatusCode >= 100 && response.StatusCode < 200 && response.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		answer := &Response{Status: response.StatusCode, Header: response.Header}
		if response.StatusCode == http.StatusSwitchingProtocols {
			return answer, nil // what follows is not HTTP any more
		}
		if answer.Body, err = io.ReadAll(response.Body); err != nil {
			return answer, fmt.Errorf("body of the %d answer after %d bytes: %w", answer.Status, len(answer.Body), err)
		}
		answer.Trailer = response.Trailer
		return answer, nil
	}
}

// Chunked encodes a body in chunked transfer encoding, one chunk for each part.
func Chunked(parts ...string) []byte {
	var out bytes.Buffer
	for _, part := range parts {
		out.WriteString(strconv.FormatInt(int64(len(part)), 16) + "\r\n" + part + "\r\n")
	}
	out.WriteString("0\r\n\r\n")
	return out.Bytes()
}

func isReset(err error) bool {
	var operation *net.OpError
	return errors.As(err, &operation) && !operation.Timeout()
}
