package zzcomposer;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Reads and writes JSON: maps, lists, texts, booleans, nothing and whole numbers. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    static Object read(String text) {
        Json json = new Json(text);
        return json.value();
    }

    static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value instanceof Map<?, ?> map) {
            String between = "{";
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                out.append(between);
                quote(String.valueOf(entry.getKey()), out);
                out.append(':');
                write(entry.getValue(), out);
                between = ",";
            }
            out.append(map.isEmpty() ? "{}" : "}");
        } else if (value instanceof List<?> list) {
            String between = "[";
            for (Object one : list) {
                out.append(between);
                write(one, out);
                between = ",";
            }
            out.append(list.isEmpty() ? "[]" : "]");
        } else if (value instanceof String string) {
            quote(string, out);
        } else {
            out.append(value);
        }
    }

    private static void quote(String string, StringBuilder out) {
        out.append('"');
        for (int n = 0; n < string.length(); n++) {
            char one = string.charAt(n);
            if (one == '"' || one == '\\') {
                out.append('\\').append(one);
            } else if (one < ' ' || one > '~') {
                out.append("\\u");
                for (int shift = 12; shift >= 0; shift -= 4) {
                    out.append(Character.forDigit(one >> shift & 15, 16));
                }
            } else {
                out.append(one);
            }
        }
        out.append('"');
    }

    private char next() {
        while (Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return text.charAt(at);
    }

    private Object value() {
        switch (next()) {
            case '{': return map();
            case '[': return list();
            case '"': return string();
            case 't': at += 4; return true;
            case 'f': at += 5; return false;
            case 'n': at += 4; return null;
            default:
                int start = at;
                while (at < text.length() && "+-.eE0123456789".indexOf(text.charAt(at)) >= 0) {
                    at++;
                }
                return Long.parseLong(text.substring(start, at));
        }
    }

    private Map<String, Object> map() {
        Map<String, Object> found = new LinkedHashMap<>();
        at++;
        while (next() != '}') {
            String key = string();
            next();
            at++;
            found.put(key, value());
            if (next() == ',') {
                at++;
                next();
            }
        }
        at++;
        return found;
    }

    private List<Object> list() {
        List<Object> found = new ArrayList<>();
        at++;
        while (next() != ']') {
            found.add(value());
            if (next() == ',') {
                at++;
            }
        }
        at++;
        return found;
    }

    private String string() {
        StringBuilder found = new StringBuilder();
        at++;
        while (text.charAt(at) != '"') {
            char one = text.charAt(at++);
            if (one == '\\') {
                char kind = text.charAt(at++);
                if (kind == 'u') {
                    found.append((char) Integer.parseInt(text.substring(at, at + 4), 16));
                    at += 4;
                } else {
                    int known = "bfnrt".indexOf(kind);
                    found.append(known < 0 ? kind : "\b\f\n\r\t".charAt(known));
                }
            } else {
                found.append(one);
            }
        }
        at++;
        return found.toString();
    }
}
