package zzcomposer;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.StringReader;
import java.io.StringWriter;
import java.lang.reflect.Field;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.URI;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.MonthDay;
import java.time.OffsetDateTime;
import java.time.Period;
import java.time.Year;
import java.time.YearMonth;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.util.Arrays;
import java.util.BitSet;
import java.util.Currency;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.TimeZone;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import java.util.regex.Pattern;

/** Classes of the JDK whose objects are exactly a text, and back. */
final class Texts {
    private record Form(Function<Object, String> written, Function<String, Object> read) {
    }

    private static final Map<Class<?>, Form> FORMS = new LinkedHashMap<>();

    static {
        put(BigInteger.class, BigInteger::new);
        put(BigDecimal.class, BigDecimal::new);
        put(UUID.class, UUID::fromString);
        put(LocalDate.class, LocalDate::parse);
        put(LocalTime.class, LocalTime::parse);
        put(LocalDateTime.class, LocalDateTime::parse);
        put(OffsetDateTime.class, OffsetDateTime::parse);
        put(ZonedDateTime.class, ZonedDateTime::parse);
        put(Instant.class, Instant::parse);
        put(Duration.class, Duration::parse);
        put(Period.class, Period::parse);
        put(Year.class, Year::parse);
        put(YearMonth.class, YearMonth::parse);
        put(MonthDay.class, MonthDay::parse);
        put(ZoneOffset.class, ZoneOffset::of);
        put(StringBuilder.class, StringBuilder::new);
        put(StringBuffer.class, StringBuffer::new);
        put(URI.class, URI::create);
        put(File.class, File::new);
        put(Currency.class, Currency::getInstance);
        put(AtomicInteger.class, text -> new AtomicInteger(Integer.parseInt(text)));
        put(AtomicLong.class, text -> new AtomicLong(Long.parseLong(text)));
        put(AtomicBoolean.class, text -> new AtomicBoolean(Boolean.parseBoolean(text)));
        FORMS.put(Locale.class, new Form(one -> ((Locale) one).toLanguageTag(), Locale::forLanguageTag));
        FORMS.put(Date.class, new Form(one -> "" + ((Date) one).getTime(), text -> new Date(Long.parseLong(text))));
        FORMS.put(BitSet.class, new Form(Texts::bits, Texts::bitSet));
        FORMS.put(Pattern.class, new Form(Texts::pattern, Texts::compiled));
        FORMS.put(StringReader.class, new Form(Texts::unread, StringReader::new));
        FORMS.put(StringWriter.class, new Form(String::valueOf, text -> new StringWriter().append(text)));
        FORMS.put(ByteArrayInputStream.class, new Form(Texts::unreadBytes, text -> new ByteArrayInputStream(bytes(text))));
        FORMS.put(ByteArrayOutputStream.class, new Form(one -> text(((ByteArrayOutputStream) one).toByteArray()), Texts::written));
    }

    private static <T> void put(Class<T> known, Function<String, ? extends T> read) {
        FORMS.put(known, new Form(String::valueOf, read::apply));
    }

    /** Returns a value's type and text; nothing where it is not exactly a text. */
    static String[] of(Object value) {
        Form form = FORMS.get(value.getClass());
        if (form != null) {
            String text = form.written.apply(value);
            return text == null ? null : new String[] {value.getClass().getSimpleName(), text};
        }
        if (value instanceof Path path && path.getFileSystem() == java.nio.file.FileSystems.getDefault()) {
            return new String[] {"Path", path.toString()};
        }
        if (value instanceof Charset charset) {
            return new String[] {"Charset", charset.name()};
        }
        if (value instanceof ZoneId zone) {
            return new String[] {"ZoneId", zone.getId()};
        }
        if (value instanceof TimeZone zone && zone.getClass().getName().startsWith("sun.util.")) {
            return new String[] {"TimeZone", zone.getID()};
        }
        return null;
    }

    /** Returns the value of a type and a text; nothing where the type is another one. */
    static Object read(String type, String text) {
        switch (type) {
            case "Path": return Path.of(text);
            case "Charset": return Charset.forName(text);
            case "ZoneId": return ZoneId.of(text);
            case "TimeZone": return TimeZone.getTimeZone(text);
            default:
                for (Map.Entry<Class<?>, Form> entry : FORMS.entrySet()) {
                    if (entry.getKey().getSimpleName().equals(type)) {
                        return entry.getValue().read.apply(text);
                    }
                }
                return null;
        }
    }

    private static String bits(Object set) {
        return ((BitSet) set).stream().mapToObj(String::valueOf).collect(java.util.stream.Collectors.joining(" "));
    }

    private static Object bitSet(String text) {
        BitSet found = new BitSet();
        for (String one : text.isEmpty() ? new String[0] : text.split(" ")) {
            found.set(Integer.parseInt(one));
        }
        return found;
    }

    /** Returns what is left in a reader; nothing where this JDK does not show it. */
    private static String unread(Object reader) {
        try {
            String text = (String) field(reader, "str");
            return text == null ? null : text.substring((Integer) field(reader, "next"));
        } catch (ReflectiveOperationException hidden) {
            return null;
        }
    }

    private static String unreadBytes(Object stream) {
        try {
            byte[] all = (byte[]) field(stream, "buf");
            return text(Arrays.copyOfRange(all, (Integer) field(stream, "pos"), (Integer) field(stream, "count")));
        } catch (ReflectiveOperationException hidden) {
            return null;
        }
    }

    private static Object field(Object value, String name) throws ReflectiveOperationException {
        Field field = value.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(value);
    }

    /** Returns bytes as a text of as many letters. */
    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.ISO_8859_1);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.ISO_8859_1);
    }

    private static Object written(String text) {
        ByteArrayOutputStream found = new ByteArrayOutputStream();
        found.writeBytes(bytes(text));
        return found;
    }

    private static String pattern(Object value) {
        return ((Pattern) value).flags() + " " + value;
    }

    private static Object compiled(String text) {
        int space = text.indexOf(' ');
        return Pattern.compile(text.substring(space + 1), Integer.parseInt(text.substring(0, space)));
    }
}
