package zzcomposer;

import java.io.FileOutputStream;
import java.io.OutputStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Makes calls that are written down, and says what each gave. It never sees what is expected. */
public final class Asker {
    @SuppressWarnings("unchecked")
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> plan = (Map<String, Object>) Json.read(Files.readString(Path.of(arguments[1])));
        Files.delete(Path.of(arguments[1]));
        OutputStream out = new FileOutputStream("/proc/self/fd/" + arguments[0], true);
        String mark = (String) plan.get("mark");
        List<Object> calls = (List<Object>) plan.get("calls");
        Recorder.asking = true;
        for (int at = ((Long) plan.get("first")).intValue(); at < calls.size(); at++) {
            if (calls.get(at) == null) {
                continue;
            }
            write(out, mark, at, "begun");
            String answer;
            try {
                answer = steady((Map<String, Object>) calls.get(at), ((Long) plan.get("repeats")).intValue(), (Boolean) plan.get("details"));
            } catch (Exception | LinkageError | StackOverflowError odd) {
                answer = "null";
            }
            write(out, mark, at, answer);
        }
        out.write((mark + " end\n").getBytes(StandardCharsets.UTF_8));
        Runtime.getRuntime().halt(0);
    }

    private static void write(OutputStream out, String mark, int number, String said) throws Exception {
        out.write((mark + " " + number + " " + said + "\n").getBytes(StandardCharsets.UTF_8));
    }

    private static String steady(Map<String, Object> call, int repeats, boolean details) throws Exception {
        String line = null;
        for (int n = 0; n < repeats; n++) {
            String again = Json.write(answer(call, details));
            if (line != null && !line.equals(again)) {
                return "null";
            }
            line = again;
        }
        return line;
    }

    @SuppressWarnings("unchecked")
    private static Object answer(Map<String, Object> call, boolean details) throws Exception {
        Executable called = find((Map<String, Object>) call.get("how"));
        List<Object> given = new ArrayList<>();
        for (Object one : (List<Object>) call.get("given")) {
            given.add(Made.of(one));
        }
        boolean method = called instanceof Method && !Modifier.isStatic(called.getModifiers());
        Object receiver = method ? given.get(0) : null;
        Object[] arguments = given.subList(method ? 1 : 0, given.size()).toArray();
        List<Object> before = details ? seen(given) : List.of();
        Recorder.take();
        List<Object> results = new ArrayList<>();
        try {
            if (called instanceof Constructor<?> constructor) {
                results.add(Values.seen(constructor.newInstance(arguments)));
            } else {
                Object result = ((Method) called).invoke(receiver, arguments);
                if (((Method) called).getReturnType() != void.class) {
                    results.add(Values.seen(result));
                }
            }
        } catch (InvocationTargetException thrown) {
            results.clear();
            results.add(Values.node("k", "throws"));
        }
        List<Object> blocks = Recorder.take();
        Map<String, Object> found = Values.node("r", results, "a", seen(given));
        if (details) {
            found.put("b", before);
            found.put("z", zero(called));
            found.put("h", blocks);
        }
        return found;
    }

    private static List<Object> seen(List<Object> values) {
        List<Object> found = new ArrayList<>();
        for (Object one : values) {
            found.add(Values.seen(one));
        }
        return found;
    }

    private static List<Object> zero(Executable called) {
        Class<?> type = called instanceof Method method ? method.getReturnType() : Object.class;
        if (type == void.class) {
            return List.of();
        }
        return List.of(Values.seen(type.isPrimitive() ? java.lang.reflect.Array.get(java.lang.reflect.Array.newInstance(type, 1), 0) : null));
    }

    /** Returns the method or constructor of a class with parameters of these simple types. */
    @SuppressWarnings("unchecked")
    private static Executable find(Map<String, Object> how) throws ReflectiveOperationException {
        Class<?> owner = Made.named((String) how.get("owner"));
        List<Object> types = (List<Object>) how.get("types");
        boolean constructor = how.get("kind").equals("new");
        Executable found = null;
        for (Executable one : constructor ? owner.getDeclaredConstructors() : owner.getDeclaredMethods()) {
            boolean named = constructor || one.getName().equals(how.get("name"));
            boolean fits = Modifier.isStatic(one.getModifiers()) == how.get("kind").equals("static");
            if (named && fits && !one.isSynthetic() && matches(one.getParameterTypes(), types)) {
                if (found != null) {
                    throw new ReflectiveOperationException("there are several of " + how);
                }
                found = one;
            }
        }
        if (found == null) {
            throw new ReflectiveOperationException("there is no " + how);
        }
        found.setAccessible(true);
        return found;
    }

    private static boolean matches(Class<?>[] parameters, List<Object> types) {
        if (parameters.length != types.size()) {
            return false;
        }
        for (int n = 0; n < parameters.length; n++) {
            String wanted = (String) types.get(n);
            String found = parameters[n].getSimpleName();
            boolean any = wanted.startsWith("?") && !parameters[n].isPrimitive() && found.endsWith(wanted.substring(1));
            if (!any && !found.equals(wanted)) {
                return false;
            }
        }
        return true;
    }
}
