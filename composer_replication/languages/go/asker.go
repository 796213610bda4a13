// Makes the calls below, each under a time limit, and says what each gave.
package PACKAGE

import (
	composerjson3 "encoding/json"
	composeros3 "os"
	composerreflect3 "reflect"
	composerstrconv3 "strconv"
	composertesting "testing"
	composertime "time"
)

const composerOneCall = MILLISECONDS * composertime.Millisecond
const composerMostHanging = 3

type composerAnswer struct {
	Results []composerValue `json:"r"`
	After   []composerValue `json:"a"`
	Before  []composerValue `json:"b,omitempty"`
	Zero    []composerValue `json:"z,omitempty"`
	Blocks  []int           `json:"h,omitempty"`
	Panics  bool            `json:"p,omitempty"`
}

var composerNothing interface{}

func composerLook(pointers []interface{}) []composerValue {
	found := []composerValue{}
	for _, pointer := range pointers {
		left := 400
		found = append(found, composerSeen(composerreflect3.ValueOf(pointer).Elem(), 0, &left))
	}
	return found
}

// composerAsk looks at what a call is given, makes it, and looks again. `results` are made by the call.
func composerAsk(given []interface{}, call func() []interface{}) (answer composerAnswer) {
	defer func() {
		if recover() != nil {
			answer = composerAnswer{Panics: true}
		}
	}()
	if DETAILS {
		answer.Before = composerLook(given)
	}
	composerForget()
	results := call()
	answer.Blocks = composerTake()
	answer.Results = composerLook(results)
	answer.After = composerLook(given)
	if DETAILS {
		zeros := []interface{}{}
		for _, result := range results {
			zeros = append(zeros, composerreflect3.New(composerreflect3.TypeOf(result).Elem()).Interface())
		}
		answer.Zero = composerLook(zeros)
	}
	return answer
}

// composerSteady makes a call several times; nothing where it answers one time so and another time otherwise.
func composerSteady(call func() composerAnswer) string {
	line, failed := composerjson3.Marshal(call())
	for n := 1; n < REPEATS && failed == nil; n++ {
		again, _ := composerjson3.Marshal(call())
		if string(again) != string(line) {
			return "null"
		}
	}
	if failed != nil {
		return "null"
	}
	return string(line)
}

var composerForget = func() {}
var composerTake = func() []int { return nil }

func TestMain(_ *composertesting.M) {
	number, _ := composerstrconv3.Atoi(composeros3.Getenv("COMPOSER_PIPE"))
	from, _ := composerstrconv3.Atoi(composeros3.Getenv("COMPOSER_FROM"))
	pipe := composeros3.NewFile(uintptr(number), "answers")
	hanging := 0
	for at := from; at < len(composerCalls) && hanging < composerMostHanging; at++ {
		pipe.WriteString("MARK " + composerstrconv3.Itoa(at) + " begun\n")
		done := make(chan string, 1)
		call := composerCalls[at]
		go func() { done <- composerSteady(call) }()
		select {
		case line := <-done:
			pipe.WriteString("MARK " + composerstrconv3.Itoa(at) + " " + line + "\n")
		case <-composertime.After(composerOneCall):
			hanging++
			pipe.WriteString("MARK " + composerstrconv3.Itoa(at) + " null\n")
		}
	}
	composeros3.Exit(0)
}
