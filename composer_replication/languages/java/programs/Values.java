package zzcomposer;

import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.security.CodeSource;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.Deque;
import java.util.Enumeration;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.SortedMap;
import java.util.SortedSet;
import java.util.stream.BaseStream;

/**
 * Values as plain data: `k` is the kind, `t` the type, `v` the text of a plain value, `e` what is inside.
 *
 * What a call is given is written so that it can be made again; of what it gives only what can be compared is said, and the order
 * of a set or map is not.
 */
final class Values {
    /** Name of a field that stands for what is in a collection. */
    static final String INSIDE = "()";
    private static final int DEEPEST = 8;
    private static final int MOST = 400;
    private static final int LONGEST = 10_000;
    private static final int MOST_ITEMS = 100;
    static final Set<String> MADE = Set.of(
        "java.util.ArrayList", "java.util.LinkedList", "java.util.ArrayDeque", "java.util.Vector", "java.util.Stack",
        "java.util.HashSet", "java.util.LinkedHashSet", "java.util.TreeSet", "java.util.PriorityQueue",
        "java.util.HashMap", "java.util.LinkedHashMap", "java.util.TreeMap", "java.util.Hashtable", "java.util.Properties",
        "java.util.concurrent.ConcurrentHashMap", "java.util.concurrent.CopyOnWriteArrayList");
    private static final Set<String> EMPTY_ABOVE = Set.of(
        "java.lang.Object", "java.lang.Number", "java.lang.Record", "java.util.AbstractList", "java.util.AbstractCollection",
        "java.util.AbstractSet", "java.util.AbstractMap", "java.util.AbstractQueue", "java.util.AbstractSequentialList");

    private final boolean given;
    private final Map<Object, Boolean> above = new IdentityHashMap<>();
    private int left = MOST;

    private Values(boolean given) {
        this.given = given;
    }

    /** Writes an argument or receiver so that `Made` makes it again. */
    static Object given(Object value) {
        return new Values(true).look(value, 0);
    }

    /** Says what can be seen of a value. */
    static Object seen(Object value) {
        return new Values(false).look(value, 0);
    }

    static Map<String, Object> node(Object... pairs) {
        Map<String, Object> found = new LinkedHashMap<>();
        for (int n = 0; n < pairs.length; n += 2) {
            found.put((String) pairs[n], pairs[n + 1]);
        }
        return found;
    }

    private Map<String, Object> look(Object value, int depth) {
        if (--left < 0 || depth > DEEPEST) {
            return node("k", "more");
        }
        if (value == null) {
            return node("k", "nil");
        }
        Map<String, Object> plain = plain(value);
        if (plain != null) {
            return plain;
        }
        if (above.put(value, true) != null) {
            return node("k", "opaque");
        }
        try {
            return value.getClass().isArray() ? array(value, depth) : inside(value, depth);
        } finally {
            above.remove(value);
        }
    }

    private static Map<String, Object> plain(Object value) {
        String type = value.getClass().getSimpleName();
        if (value instanceof Boolean) {
            return node("k", "bool", "t", type, "v", value.toString());
        }
        if (value instanceof Integer || value instanceof Long || value instanceof Short || value instanceof Byte) {
            return node("k", "int", "t", type, "v", value.toString());
        }
        if (value instanceof Double || value instanceof Float) {
            return node("k", "float", "t", type, "v", value.toString());
        }
        if (value instanceof Character || value instanceof String) {
            return text(type, value.toString());
        }
        if (value instanceof Enum<?> one) {
            return node("k", "string", "t", "enum " + one.getDeclaringClass().getName(), "v", one.name());
        }
        if (value instanceof Class<?> one) {
            return node("k", "string", "t", "Class", "v", one.getName());
        }
        String[] form = Texts.of(value);
        return form == null ? null : text(form[0], form[1]);
    }

    private static Map<String, Object> text(String type, String text) {
        for (int n = 0; n < text.length(); n++) {
            if (Character.isSurrogate(text.charAt(n))) {
                if (n + 1 >= text.length() || !Character.isSurrogatePair(text.charAt(n), text.charAt(n + 1))) {
                    return node("k", "more");
                }
                n++;
            }
        }
        return text.length() > LONGEST ? node("k", "more") : node("k", "string", "t", type, "v", text);
    }

    private Map<String, Object> array(Object value, int depth) {
        List<Object> items = new ArrayList<>();
        for (int n = 0; n < Array.getLength(value) && left >= 0; n++) {
            items.add(look(Array.get(value, n), depth + 1));
        }
        return node("k", "list", "t", value.getClass().getTypeName(), "e", items);
    }

    private Map<String, Object> inside(Object value, int depth) {
        Class<?> type = value.getClass();
        boolean ours = isOurs(type);
        if (!ours && type.getName().startsWith("java.util.")) {
            if (value instanceof Collection<?> collection) {
                return list(collection, depth);
            }
            if (value instanceof Map<?, ?> map) {
                return map(map, depth);
            }
            if (value instanceof Map.Entry<?, ?> entry) {
                return struct("Entry", "key", look(entry.getKey(), depth + 1), "value", look(entry.getValue(), depth + 1));
            }
            Map<String, Object> optional = optional(value, depth);
            if (optional != null) {
                return optional;
            }
        }
        if (value instanceof Throwable) {
            return node("k", "error", "t", type.getName());
        }
        if (!given && (value instanceof Iterator || value instanceof BaseStream || value instanceof Enumeration)) {
            return iterated(value, depth);
        }
        Class<?> base = ours ? base(type) : null;
        boolean holds = base != null && MADE.contains(base.getName());
        return holds || (base != null && EMPTY_ABOVE.contains(base.getName())) ? fields(value, holds, depth) : node("k", "opaque");
    }

    private static Map<String, Object> struct(String type, Object... pairs) {
        List<Object> fields = new ArrayList<>();
        for (int n = 0; n < pairs.length; n += 2) {
            fields.add(List.of(pairs[n], pairs[n + 1]));
        }
        return node("k", "struct", "t", type, "e", fields);
    }

    private Map<String, Object> list(Collection<?> collection, int depth) {
        List<Object> items = new ArrayList<>();
        for (Object one : collection) {
            if (left < 0) {
                break;
            }
            items.add(look(one, depth + 1));
        }
        boolean set = collection instanceof Set;
        String shape = set ? "Set" : collection instanceof List ? "List" : collection instanceof Deque ? "Deque"
            : collection instanceof Queue ? "Queue" : "Collection";
        if (given) {
            boolean own = collection instanceof SortedSet<?> sorted && sorted.comparator() != null;
            String name = collection.getClass().getName();
            return own ? node("k", "opaque") : node("k", "list", "t", MADE.contains(name) ? name : shape, "e", items);
        }
        if (set || shape.equals("Queue") || shape.equals("Collection")) {
            items.sort(Comparator.comparing(Json::write));
        }
        return node("k", "list", "t", shape, "e", items);
    }

    private Map<String, Object> map(Map<?, ?> map, int depth) {
        List<Object> pairs = new ArrayList<>();
        for (Map.Entry<?, ?> entry : map.entrySet()) {
            if (left < 0) {
                break;
            }
            pairs.add(List.of(look(entry.getKey(), depth + 1), look(entry.getValue(), depth + 1)));
        }
        if (given) {
            boolean own = map instanceof SortedMap<?, ?> sorted && sorted.comparator() != null;
            String name = map.getClass().getName();
            return own ? node("k", "opaque") : node("k", "map", "t", MADE.contains(name) ? name : "Map", "e", pairs);
        }
        pairs.sort(Comparator.comparing(Json::write));
        return node("k", "map", "t", "Map", "e", pairs);
    }

    private Map<String, Object> optional(Object value, int depth) {
        Object inner;
        if (value instanceof Optional<?> one) {
            inner = one.orElse(null);
        } else if (value instanceof OptionalInt one) {
            inner = one.isPresent() ? one.getAsInt() : null;
        } else if (value instanceof OptionalLong one) {
            inner = one.isPresent() ? one.getAsLong() : null;
        } else if (value instanceof OptionalDouble one) {
            inner = one.isPresent() ? one.getAsDouble() : null;
        } else {
            return null;
        }
        String type = value.getClass().getSimpleName();
        return inner == null ? struct(type) : struct(type, "value", look(inner, depth + 1));
    }

    private Map<String, Object> iterated(Object value, int depth) {
        Iterator<?> all = value instanceof BaseStream<?, ?> stream ? stream.iterator()
            : value instanceof Enumeration<?> one ? one.asIterator() : (Iterator<?>) value;
        List<Object> items = new ArrayList<>();
        while (all.hasNext()) {
            if (items.size() >= MOST_ITEMS) {
                return node("k", "more");
            }
            items.add(look(all.next(), depth + 1));
        }
        return node("k", "list", "t", "Iterator", "e", items);
    }

    private static final Map<Class<?>, Boolean> OURS = new ConcurrentHashMap<>();
    private static final Map<Class<?>, Map<String, Field>> FIELDS = new ConcurrentHashMap<>();

    /** Returns whether a class is the project's own: it lies in a folder, and no jar. */
    static boolean isOurs(Class<?> type) {
        return OURS.computeIfAbsent(type, Values::liesInFolder);
    }

    private static boolean liesInFolder(Class<?> type) {
        CodeSource source = type.getProtectionDomain().getCodeSource();
        return source != null && source.getLocation() != null && source.getLocation().getPath().endsWith("/")
            && !type.getName().startsWith("zzcomposer.");
    }

    /** Returns the first class above that is not the project's; nothing for a class that has no name everywhere. */
    private static Class<?> base(Class<?> type) {
        if (type.isAnonymousClass() || type.isLocalClass() || type.isHidden() || type.isSynthetic()) {
            return null;
        }
        Class<?> one = type;
        while (isOurs(one)) {
            one = one.getSuperclass();
        }
        return one;
    }

    /** Returns the fields of an object, and what is in it where its class extends a collection (`holds`). */
    private Map<String, Object> fields(Object value, boolean holds, int depth) {
        List<Object> found = new ArrayList<>();
        if (holds) {
            Object inside = value instanceof Map<?, ?> map ? map(map, depth) : list((Collection<?>) value, depth);
            found.add(List.of(INSIDE, inside));
        }
        for (Map.Entry<String, Field> entry : fieldsOf(value.getClass()).entrySet()) {
            try {
                found.add(List.of(entry.getKey(), look(entry.getValue().get(value), depth + 1)));
            } catch (IllegalAccessException hidden) {
                return node("k", "opaque");
            }
        }
        return node("k", "struct", "t", value.getClass().getName(), "e", found);
    }

    /** Returns the fields of a class and those above it by name, in the order of the names. */
    static Map<String, Field> fieldsOf(Class<?> type) {
        Map<String, Field> known = FIELDS.get(type);
        if (known == null) {
            known = findFields(type);
            FIELDS.put(type, known);
        }
        return known;
    }

    private static Map<String, Field> findFields(Class<?> type) {
        Map<String, Field> found = new java.util.TreeMap<>();
        for (Class<?> one = type; one != null && isOurs(one); one = one.getSuperclass()) {
            for (Field field : one.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())) {
                    field.setAccessible(true);
                    String name = found.containsKey(field.getName()) ? one.getSimpleName() + "." + field.getName() : field.getName();
                    found.put(name, field);
                }
            }
        }
        return found;
    }
}
