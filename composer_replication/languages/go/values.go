// Values of a package's calls as plain data, and back: what a call is given has to be written down as Go, what it gives only has
// to be compared. Unexported fields are read and never set.
package PACKAGE

import (
	composerfmt "fmt"
	composerreflect "reflect"
	composersort "sort"
	composerstrconv "strconv"
	composerjson "encoding/json"
	composerutf8 "unicode/utf8"
)

type composerMark struct{}

var composerHere = composerreflect.TypeOf(composerMark{}).PkgPath()

const composerDepth, composerItems = 8, 400

type composerValue map[string]interface{}

// composerType returns the text of a type as this package writes it; empty where it cannot.
func composerType(t composerreflect.Type) string {
	if t.Name() != "" {
		if t.PkgPath() != "" && t.PkgPath() != composerHere {
			return ""
		}
		for _, letter := range t.Name() {
			if letter == '[' || letter == '·' {
				return ""
			}
		}
		return t.Name()
	}
	switch t.Kind() {
	case composerreflect.Slice, composerreflect.Ptr, composerreflect.Array:
		inner := composerType(t.Elem())
		if inner == "" {
			return ""
		}
		if t.Kind() == composerreflect.Slice {
			return "[]" + inner
		}
		if t.Kind() == composerreflect.Array {
			return "[" + composerstrconv.Itoa(t.Len()) + "]" + inner
		}
		return "*" + inner
	case composerreflect.Map:
		key, inner := composerType(t.Key()), composerType(t.Elem())
		if key == "" || inner == "" {
			return ""
		}
		return "map[" + key + "]" + inner
	case composerreflect.Interface:
		if t.NumMethod() == 0 {
			return "interface{}"
		}
	}
	return ""
}

// composerGiven writes an argument down; false where Go source cannot give it again.
func composerGiven(v composerreflect.Value, depth int, left *int) (composerValue, bool) {
	*left--
	if depth > composerDepth || *left < 0 {
		return nil, false
	}
	if !v.IsValid() {
		return composerValue{"k": "nil"}, true
	}
	text := composerType(v.Type())
	switch v.Kind() {
	case composerreflect.Interface:
		if v.IsNil() {
			return composerValue{"k": "nil"}, true
		}
		inner, good := composerGiven(v.Elem(), depth+1, left)
		return composerValue{"k": "interface", "e": inner}, good
	case composerreflect.Ptr, composerreflect.Slice, composerreflect.Map, composerreflect.Func, composerreflect.Chan:
		if v.IsNil() {
			return composerValue{"k": "nil"}, true
		}
	}
	if text == "" {
		return nil, false
	}
	if plain := composerPlain(v); plain != nil {
		plain["t"] = text
		return plain, plain["v"] != nil
	}
	switch v.Kind() {
	case composerreflect.Ptr:
		inner, good := composerGiven(v.Elem(), depth+1, left)
		return composerValue{"k": "pointer", "e": inner}, good
	case composerreflect.Slice, composerreflect.Array:
		items := []composerValue{}
		for i := 0; i < v.Len(); i++ {
			inner, good := composerGiven(v.Index(i), depth+1, left)
			if !good {
				return nil, false
			}
			items = append(items, inner)
		}
		return composerValue{"k": "list", "t": text, "e": items}, true
	case composerreflect.Map:
		pairs := [][]composerValue{}
		for _, key := range v.MapKeys() {
			one, good := composerGiven(key, depth+1, left)
			two, well := composerGiven(v.MapIndex(key), depth+1, left)
			if !good || !well {
				return nil, false
			}
			pairs = append(pairs, []composerValue{one, two})
		}
		composerSorted(pairs)
		return composerValue{"k": "map", "t": text, "e": pairs}, true
	case composerreflect.Struct:
		fields := [][]interface{}{}
		for i := 0; i < v.NumField(); i++ {
			if v.Field(i).IsZero() {
				continue
			}
			inner, good := composerGiven(v.Field(i), depth+1, left)
			if !good || v.Type().Field(i).Name == "_" {
				return nil, false
			}
			fields = append(fields, []interface{}{v.Type().Field(i).Name, inner})
		}
		return composerValue{"k": "struct", "t": text, "e": fields}, true
	}
	return nil, false
}

func composerSorted(pairs [][]composerValue) {
	composersort.Slice(pairs, func(i, j int) bool { return composerText(pairs[i][0]) < composerText(pairs[j][0]) })
}

func composerText(value interface{}) string {
	text, _ := composerjson.Marshal(value)
	return string(text)
}

// composerPlain returns a bool, number or string; one without a value where it cannot be written down; nil for anything else.
func composerPlain(v composerreflect.Value) composerValue {
	switch v.Kind() {
	case composerreflect.Bool:
		return composerValue{"k": "bool", "v": composerstrconv.FormatBool(v.Bool())}
	case composerreflect.Int, composerreflect.Int8, composerreflect.Int16, composerreflect.Int32, composerreflect.Int64:
		return composerValue{"k": "int", "v": composerstrconv.FormatInt(v.Int(), 10)}
	case composerreflect.Uint, composerreflect.Uint8, composerreflect.Uint16, composerreflect.Uint32, composerreflect.Uint64,
		composerreflect.Uintptr:
		return composerValue{"k": "uint", "v": composerstrconv.FormatUint(v.Uint(), 10)}
	case composerreflect.Float32, composerreflect.Float64:
		if v.Float() != v.Float() || v.Float() > 1e300 || v.Float() < -1e300 {
			return composerValue{"k": "float", "v": nil}
		}
		return composerValue{"k": "float", "v": composerstrconv.FormatFloat(v.Float(), 'g', -1, 64)}
	case composerreflect.String:
		if !composerutf8.ValidString(v.String()) || v.Len() > 4000 {
			return composerValue{"k": "string", "v": nil}
		}
		return composerValue{"k": "string", "v": v.String()}
	}
	return nil
}

// composerSeen says what can be seen of a value: all fields of a struct of this package, the exported ones of another's and, where
// that has none, what it says of itself.
func composerSeen(v composerreflect.Value, depth int, left *int) composerValue {
	*left--
	if !v.IsValid() {
		return composerValue{"k": "nil"}
	}
	if depth > composerDepth || *left < 0 {
		return composerValue{"k": "more"}
	}
	if v.Type().Implements(composerreflect.TypeOf((*error)(nil)).Elem()) && depth < 2 {
		if (v.Kind() == composerreflect.Interface || v.Kind() == composerreflect.Ptr) && v.IsNil() {
			return composerValue{"k": "nil"}
		}
		return composerValue{"k": "error"}
	}
	if plain := composerPlain(v); plain != nil {
		if plain["v"] == nil {
			plain["v"] = composerfmt.Sprintf("%q", composerfmt.Sprint(v))
		}
		plain["t"] = v.Type().String()
		return plain
	}
	switch v.Kind() {
	case composerreflect.Interface, composerreflect.Ptr:
		if v.IsNil() {
			return composerValue{"k": "nil"}
		}
		return composerSeen(v.Elem(), depth+1, left)
	case composerreflect.Slice, composerreflect.Array:
		items := []composerValue{}
		for i := 0; i < v.Len(); i++ {
			items = append(items, composerSeen(v.Index(i), depth+1, left))
		}
		return composerValue{"k": "list", "e": items}
	case composerreflect.Map:
		pairs := [][]composerValue{}
		for _, key := range v.MapKeys() {
			pairs = append(pairs, []composerValue{composerSeen(key, depth+1, left), composerSeen(v.MapIndex(key), depth+1, left)})
		}
		composerSorted(pairs)
		return composerValue{"k": "map", "e": pairs}
	case composerreflect.Struct:
		return composerStruct(v, depth, left)
	}
	return composerValue{"k": "opaque"}
}

func composerStruct(v composerreflect.Value, depth int, left *int) composerValue {
	own, fields := v.Type().PkgPath() == composerHere, [][]interface{}{}
	for i := 0; i < v.NumField(); i++ {
		if field := v.Type().Field(i); field.PkgPath == "" || own {
			fields = append(fields, []interface{}{field.Name, composerSeen(v.Field(i), depth+1, left)})
		}
	}
	if len(fields) > 0 || own || v.NumField() == 0 {
		return composerValue{"k": "struct", "t": v.Type().Name(), "e": fields}
	}
	whole := []composerreflect.Value{v}
	if v.CanAddr() {
		whole = []composerreflect.Value{v.Addr(), v}
	}
	for _, one := range whole {
		if one.CanInterface() {
			if said, can := one.Interface().(composerfmt.Stringer); can {
				return composerValue{"k": "string", "t": v.Type().String(), "v": composerString(said)}
			}
		}
	}
	return composerValue{"k": "opaque"}
}

func composerString(said composerfmt.Stringer) (text string) {
	defer func() {
		if recover() != nil {
			text = "it panics"
		}
	}()
	return said.String()
}
