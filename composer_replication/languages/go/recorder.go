// Writes down what calls are given, and which blocks of the code run. It is in a package whose functions begin with a call of it.
package PACKAGE

import (
	composerjson2 "encoding/json"
	composeros2 "os"
	composerreflect2 "reflect"
	composersync "sync"
)

const composerMostCalls = 150

var composerLock composersync.Mutex
var composerKnown = map[string]bool{}
var composerCounts = map[string]int{}
var composerBlocks = map[int]bool{}
var composerBusy = false
var composerFile, _ = composeros2.OpenFile(
	composeros2.Getenv("COMPOSER_RECORD"), composeros2.O_APPEND|composeros2.O_CREATE|composeros2.O_WRONLY, 0600,
)

func composerHit(number int) {
	composerLock.Lock()
	composerBlocks[number] = true
	composerLock.Unlock()
}

func composerCalled(key string, given ...interface{}) {
	composerLock.Lock()
	full := composerBusy || composerFile == nil || composerCounts[key] >= composerMostCalls
	composerLock.Unlock()
	if full {
		return
	}
	values, left := []composerValue{}, 400
	for _, pointer := range given {
		value, good := composerGiven(composerreflect2.ValueOf(pointer).Elem(), 0, &left)
		if !good {
			return
		}
		values = append(values, value)
	}
	line, failed := composerjson2.Marshal([]interface{}{key, values})
	if failed != nil || len(line) > 20000 {
		return
	}
	composerLock.Lock()
	defer composerLock.Unlock()
	if !composerKnown[string(line)] && composerCounts[key] < composerMostCalls {
		composerKnown[string(line)] = true
		composerCounts[key]++
		composerFile.Write(append(line, '\n'))
	}
}
