package rawhttp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// windowBytes is the client's initial flow-control window, so large that it never has to be extended.
const windowBytes = 64 << 20

// connectionSpecific headers do not exist in HTTP/2 (RFC 9113, section 8.2.2).
var connectionSpecific = map[string]bool{"connection": true, "upgrade": true, "transfer-encoding": true, "http2-settings": true}

// doHTTP2 sends one request over HTTP/2 without TLS and with prior knowledge. The target is written into `:path`
// unchanged, Host becomes `:authority`, and headers that HTTP/2 does not have are left out.
func (t Target) doHTTP2(ctx context.Context, request Request) (*Response, error) {
	connection, err := t.Dial(ctx)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	if _, err := io.WriteString(connection, http2.ClientPreface); err != nil {
		return nil, err
	}
	framer := http2.NewFramer(connection, connection)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: windowBytes}); err != nil {
		return nil, err
	}
	if err := framer.WriteWindowUpdate(0, windowBytes); err != nil {
		return nil, err
	}
	if err := writeRequest(framer, t.withAuthorization(request)); err != nil {
		return nil, err
	}
	return readResponse(framer)
}

func writeRequest(framer *http2.Framer, request Request) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	method := request.Method
	if method == "" {
		method = http.MethodGet
	}
	authority, regular := "localhost", []hpack.HeaderField{}
	for _, line := range request.Headers {
		name, value, _ := strings.Cut(line, ":")
		name, value = strings.ToLower(name), strings.TrimSpace(value)
		switch {
		case name == "host":
			authority = value
		case !connectionSpecific[name]:
			regular = append(regular, hpack.HeaderField{Name: name, Value: value})
		}
	}
	fields := append([]hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: authority}, {Name: ":path", Value: request.Path},
	}, regular...)
	for _, field := range fields {
		if err := encoder.WriteField(field); err != nil {
			return err
		}
	}
	return writeFrames(framer, block.Bytes(), request.Body)
}

// maxFrame is the frame size that every peer accepts (RFC 9113, section 6.5.2).
const maxFrame = 16 << 10

func writeFrames(framer *http2.Framer, block, body []byte) error {
	first := block[:min(len(block), maxFrame)]
	rest := block[len(first):]
	err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first, EndHeaders: len(rest) == 0, EndStream: len(body) == 0})
	for err == nil && len(rest) > 0 {
		part := rest[:min(len(rest), maxFrame)]
		rest = rest[len(part):]
		err = framer.WriteContinuation(1, len(rest) == 0, part)
	}
	for err == nil && len(body) > 0 {
		part := body[:min(len(body), maxFrame)]
		body = body[len(part):]
		err = framer.WriteData(1, len(body) == 0, part)
	}
	return err
}

// readResponse reads the response on stream 1. A reset stream or connection is ErrClosed if no response had begun.
func readResponse(framer *http2.Framer) (*Response, error) {
	answer := &Response{Header: http.Header{}}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return answer.bodyError(err)
		}
		ended := false
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			if err := answer.addHeaders(f); err != nil {
				return nil, err
			}
			ended = f.StreamEnded()
		case *http2.DataFrame:
			answer.Body = append(answer.Body, f.Data()...)
			ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			return answer.bodyError(fmt.Errorf("the stream was reset with %s", f.ErrCode))
		case *http2.GoAwayFrame:
			if f.LastStreamID < 1 {
				return answer.bodyError(fmt.Errorf("GOAWAY with %s", f.ErrCode))
			}
		case *http2.SettingsFrame:
			if !f.IsAck() {
				if err := framer.WriteSettingsAck(); err != nil {
					return answer.bodyError(err)
				}
			}
		}
		if ended {
			return answer, nil
		}
	}
}

// addHeaders reads a head, which may be a 1xx response, or trailers.
func (r *Response) addHeaders(frame *http2.MetaHeadersFrame) error {
	fields := http.Header{}
	for _, field := range frame.RegularFields() {
		fields.Add(field.Name, field.Value)
	}
	if r.Status >= 200 {
		r.Trailer = fields
		return nil
	}
	r.Header = fields
	_, err := fmt.Sscan(frame.PseudoValue("status"), &r.Status)
	return err
}

func (r *Response) bodyError(err error) (*Response, error) {
	if r.Status == 0 {
		return nil, fmt.Errorf("%w (%w)", ErrClosed, err)
	}
	return r, fmt.Errorf("body of the %d answer after %d bytes: %w", r.Status, len(r.Body), err)
}
