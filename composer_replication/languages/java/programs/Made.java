package zzcomposer;

import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.RecordComponent;
import java.util.AbstractMap;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalInt;
import java.util.OptionalLong;
import sun.reflect.ReflectionFactory;

/** Makes the values that `Values` wrote down as given. */
final class Made {
    private static final Map<String, Class<?>> PRIMITIVES = new HashMap<>();

    static {
        for (Class<?> one : new Class<?>[] {
            boolean.class, byte.class, short.class, char.class, int.class, long.class, float.class, double.class,
        }) {
            PRIMITIVES.put(one.getName(), one);
        }
    }

    @SuppressWarnings("unchecked")
    static Object of(Object data) throws ReflectiveOperationException {
        Map<String, Object> node = (Map<String, Object>) data;
        String type = (String) node.get("t");
        String text = (String) node.get("v");
        switch ((String) node.get("k")) {
            case "nil": return null;
            case "bool": return Boolean.parseBoolean(text);
            case "int": return whole(type, text);
            case "float": return type.equals("Float") ? (Object) (float) number(text) : (Object) number(text);
            case "string": return string(type, text);
            case "list": return list(type, (List<Object>) node.get("e"));
            case "map": return map(type, (List<Object>) node.get("e"));
            case "struct": return struct(type, (List<Object>) node.get("e"));
            default: throw new ReflectiveOperationException("a value of the kind " + node.get("k") + " cannot be made");
        }
    }

    private static double number(String text) {
        return text.equals("inf") ? Double.POSITIVE_INFINITY : text.equals("-inf") ? Double.NEGATIVE_INFINITY
            : text.equals("nan") ? Double.NaN : Double.parseDouble(text);
    }

    private static Object whole(String type, String text) {
        switch (type) {
            case "Long": return Long.parseLong(text);
            case "Short": return Short.parseShort(text);
            case "Byte": return Byte.parseByte(text);
            default: return Integer.parseInt(text);
        }
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object string(String type, String text) throws ReflectiveOperationException {
        if (type.equals("String")) {
            return new String(text);
        }
        if (type.equals("Character")) {
            if (text.length() != 1) {
                throw new ReflectiveOperationException("not a character");
            }
            return text.charAt(0);
        }
        if (type.startsWith("enum ")) {
            return Enum.valueOf((Class) named(type.substring(5)), text);
        }
        if (type.equals("Class")) {
            return named(text);
        }
        Object found = Texts.read(type, text);
        if (found == null) {
            throw new ReflectiveOperationException("there is no type " + type);
        }
        return found;
    }

    /** Returns the class of a name, of an array or a primitive too. */
    static Class<?> named(String name) throws ReflectiveOperationException {
        if (name.endsWith("[]")) {
            return named(name.substring(0, name.length() - 2)).arrayType();
        }
        Class<?> primitive = PRIMITIVES.get(name);
        return primitive != null ? primitive : Class.forName(name, true, Made.class.getClassLoader());
    }

    private static Object list(String type, List<Object> items) throws ReflectiveOperationException {
        List<Object> made = new ArrayList<>();
        for (Object one : items) {
            made.add(of(one));
        }
        if (type.endsWith("[]")) {
            Object array = Array.newInstance(named(type.substring(0, type.length() - 2)), made.size());
            for (int n = 0; n < made.size(); n++) {
                Array.set(array, n, made.get(n));
            }
            return array;
        }
        switch (type) {
            case "List": case "Collection": return made;
            case "Set": return new LinkedHashSet<>(made);
            case "Deque": case "Queue": return new ArrayDeque<>(made);
            default:
                Collection<Object> found = known(type);
                found.addAll(made);
                return found;
        }
    }

    private static Object map(String type, List<Object> pairs) throws ReflectiveOperationException {
        Map<Object, Object> found = type.equals("Map") ? new LinkedHashMap<>() : known(type);
        for (Object pair : pairs) {
            found.put(of(((List<?>) pair).get(0)), of(((List<?>) pair).get(1)));
        }
        return found;
    }

    @SuppressWarnings("unchecked")
    private static <T> T known(String type) throws ReflectiveOperationException {
        if (!Values.MADE.contains(type)) {
            throw new ReflectiveOperationException("there is no collection " + type);
        }
        return (T) Class.forName(type).getDeclaredConstructor().newInstance();
    }

    private static Object struct(String type, List<Object> listed) throws ReflectiveOperationException {
        Map<String, Object> values = new HashMap<>();
        for (Object pair : listed) {
            values.put((String) ((List<?>) pair).get(0), of(((List<?>) pair).get(1)));
        }
        Object inner = values.get("value");
        switch (type) {
            case "Entry": return new AbstractMap.SimpleEntry<>(values.get("key"), inner);
            case "Optional": return Optional.ofNullable(inner);
            case "OptionalInt": return inner == null ? OptionalInt.empty() : OptionalInt.of((Integer) inner);
            case "OptionalLong": return inner == null ? OptionalLong.empty() : OptionalLong.of((Long) inner);
            case "OptionalDouble": return inner == null ? OptionalDouble.empty() : OptionalDouble.of((Double) inner);
            default: return object(named(type), values);
        }
    }

    private static Object empty(Class<?> type) throws ReflectiveOperationException {
        ReflectionFactory factory = ReflectionFactory.getReflectionFactory();
        return factory.newConstructorForSerialization(type, Object.class.getDeclaredConstructor()).newInstance();
    }

    /** Returns an object of a class that extends a collection, by its constructor without parameters. */
    @SuppressWarnings("unchecked")
    private static Object holding(Class<?> type, Object inside) throws ReflectiveOperationException {
        Constructor<?> constructor = type.getDeclaredConstructor();
        constructor.setAccessible(true);
        Object made = constructor.newInstance();
        if (made instanceof Map<?, ?> map) {
            ((Map<Object, Object>) map).putAll((Map<Object, Object>) inside);
        } else {
            ((Collection<Object>) made).addAll((Collection<Object>) inside);
        }
        return made;
    }

    private static Object object(Class<?> type, Map<String, Object> values) throws ReflectiveOperationException {
        if (!Values.isOurs(type)) {
            throw new ReflectiveOperationException(type + " is not the project's");
        }
        if (type.isRecord()) {
            RecordComponent[] parts = type.getRecordComponents();
            Class<?>[] types = new Class<?>[parts.length];
            Object[] arguments = new Object[parts.length];
            for (int n = 0; n < parts.length; n++) {
                types[n] = parts[n].getType();
                arguments[n] = values.get(parts[n].getName());
            }
            Constructor<?> whole = type.getDeclaredConstructor(types);
            whole.setAccessible(true);
            return whole.newInstance(arguments);
        }
        Object inside = values.remove(Values.INSIDE);
        Object made = inside == null ? empty(type) : holding(type, inside);
        Map<String, Field> fields = Values.fieldsOf(type);
        for (Map.Entry<String, Object> entry : values.entrySet()) {
            Field field = fields.get(entry.getKey());
            if (field == null) {
                throw new ReflectiveOperationException(type + " has no field " + entry.getKey());
            }
            field.set(made, entry.getValue());
        }
        return made;
    }
}
