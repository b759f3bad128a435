/* The parts of a small request that cost Python most: bytes to numbers and back.
 *
 * Each function does the plain case of a function in Python that does every case, and gives None
 * for anything else, be it seldom or wrong: then that one does it, or says what is wrong. So there
 * is one place for each rule and each sentence, and nothing is lost without this module.
 * The layouts are those of cometmq/batch/layout.py and cometmq/protocol/frames.py.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#ifndef SOURCE_CRC /* CRC-32 of this file, by who builds it: a build of another one is not used. */
#define SOURCE_CRC 0
#endif

#define MAGIC "CMB\x01"

enum {
    BROKER_CRC_AT = 4,
    LENGTH_AT = 8,
    STAMP_AT = 12,
    PRODUCER_CRC_AT = 72,
    SEALED_AT = 76,
    ATTRIBUTES_AT = 76,
    QUEUE_CLAIM_AT = 78,
    COUNT_AT = 80,
    SIZE_AT = 84,
    FIRST_BORN_AT = 88,
    BORN_SPAN_AT = 96,
    TOPIC_LENGTH_AT = 100,
    TOPIC_AT = 101,
    BATCH_FIELDS = 27,
    STAMP_FIELDS = 10,
    STORE_TIME_FIELD = 4, /* Of them, the one with a sign. */
    FLAGS_AT = 63,
    PRODUCER_BYTES = 24,
    ARRAY_BYTES = 5,
    ARRAY32 = 0xDD,
    LENGTH_MIN = 115,
    BATCH_BYTES_MAX = 16 << 20,
    HAS_PRODUCER = 1 << 4,
    CODE_AT = 8,
    HEADER_LENGTH_AT = 10,
    PREFIX_BYTES = 14,
    ONE_FRAME_BYTES = 8192,
    FRAMES_MAX = 16,
    MORE = 1,
    LONG = 2,
    LONG_HEADER_BYTES = 9,
};

/* The broker's fields behind the length, in their order. */
static const struct {
    const char *name;
    int bytes;
} stamp_fields[STAMP_FIELDS] = {
    {"position", 8}, {"epoch", 8}, {"synced_before", 8}, {"base_offset", 8}, {"store_time", 8},
    {"incarnation", 8}, {"queue", 2}, {"origin_kind", 1}, {"flags", 1}, {"origin_position", 8},
};

/* The module's dict: who counts CRCs puts its own crc32c there, which mustn't keep what it gets. */
static PyObject *module_names;
static PyObject *name_crc32c, *name_view, *name_broker_crc, *stamp_names[STAMP_FIELDS];
static PyObject *struct_error;

/* --- numbers in bytes ------------------------------------------------------------------------ */

static inline uint64_t read_low(const uint8_t *at, int size) {
    uint64_t value = 0;
    for (int i = 0; i < size; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static inline uint16_t read_u16(const uint8_t *at) { return (uint16_t)read_low(at, 2); }
static inline uint32_t read_u32(const uint8_t *at) { return (uint32_t)read_low(at, 4); }
static inline uint64_t read_u64(const uint8_t *at) { return read_low(at, 8); }

static inline void write_low(uint8_t *at, uint64_t value, int size) {
    for (int i = 0; i < size; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static inline void write_high(uint8_t *at, uint64_t value, int size) {
    for (int i = 0; i < size; i++) at[i] = (uint8_t)(value >> (8 * (size - 1 - i)));
}

/* CRC-32C by the package that everything else uses; false with an error set. */
static int crc_of(const uint8_t *data, Py_ssize_t size, uint32_t start, uint32_t *crc) {
    PyObject *function = PyObject_GetItem(module_names, name_crc32c);
    if (!function) return 0;
    PyObject *view = PyMemoryView_FromMemory((char *)data, size, PyBUF_READ);
    PyObject *from = view ? PyLong_FromUnsignedLong(start) : NULL, *found = NULL;
    if (from) {
        PyObject *arguments[] = {view, from};
        found = PyObject_Vectorcall(function, arguments, 2, NULL);
    }
    Py_DECREF(function);
    Py_XDECREF(from);
    Py_XDECREF(view);
    if (!found) return 0;
    *crc = (uint32_t)PyLong_AsUnsignedLong(found);
    Py_DECREF(found);
    return !PyErr_Occurred();
}

/* An int that fits; 0 without an error set if it is none or doesn't. */
static int unsigned_of(PyObject *number, uint64_t most, uint64_t *value) {
    if (!PyLong_CheckExact(number)) return 0;
    *value = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return *value <= most;
}

static int takes(const char *function, Py_ssize_t number, Py_ssize_t wanted) {
    if (number != wanted)
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", function, wanted, number);
    return number == wanted;
}

/* --- frames ------------------------------------------------------------------------------------ */

static PyObject *slice_of(PyObject *view, Py_ssize_t start, Py_ssize_t stop) {
    PyObject *from = PyLong_FromSsize_t(start), *to = PyLong_FromSsize_t(stop), *part = NULL;
    PyObject *range = from && to ? PySlice_New(from, to, NULL) : NULL;
    if (range) part = PyObject_GetItem(view, range);
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_XDECREF(range);
    return part;
}

PyDoc_STRVAR(unpack_doc,
"unpack(frames) -> tuple[int, int, memoryview, list[memoryview]] | None\n\n"
"The plain case of `cometmq.protocol.unpack`: a list of not too many `bytes`, the first with a whole\n"
"header.");

static PyObject *unpack(PyObject *self, PyObject *frames) {
    if (!PyList_CheckExact(frames) || PyList_GET_SIZE(frames) < 1
        || PyList_GET_SIZE(frames) > FRAMES_MAX)
        Py_RETURN_NONE;
    PyObject *frame = PyList_GET_ITEM(frames, 0);
    if (!PyBytes_CheckExact(frame)) Py_RETURN_NONE;
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(frame);
    Py_ssize_t size = PyBytes_GET_SIZE(frame);
    if (size < PREFIX_BYTES) Py_RETURN_NONE;
    if (read_u32(data + HEADER_LENGTH_AT) > (size_t)(size - PREFIX_BYTES)) Py_RETURN_NONE;
    Py_ssize_t end = PREFIX_BYTES + (Py_ssize_t)read_u32(data + HEADER_LENGTH_AT);
    Py_INCREF(frame); /* A collection in any call below may run what takes it out of the list. */
    PyObject *view = PyMemoryView_FromObject(frame), *header = NULL, *body = NULL, *made = NULL;
    if (!view || !(header = slice_of(view, PREFIX_BYTES, end)) || !(body = PyList_New(0)))
        goto failed;
    for (Py_ssize_t i = end < size ? 0 : 1; i < PyList_GET_SIZE(frames); i++) {
        PyObject *content = Py_NewRef(PyList_GET_ITEM(frames, i));
        PyObject *piece = i == 0 ? slice_of(view, end, size) : PyMemoryView_FromObject(content);
        Py_DECREF(content);
        int put = piece ? PyList_Append(body, piece) : -1;
        Py_XDECREF(piece);
        if (put < 0) goto failed;
    }
    made = Py_BuildValue("KHOO", (unsigned long long)read_u64(data), read_u16(data + CODE_AT), header,
                         body);
failed:
    Py_DECREF(frame);
    Py_XDECREF(view);
    Py_XDECREF(header);
    Py_XDECREF(body);
    return made;
}

PyDoc_STRVAR(pack_doc,
"pack(request_id, code, header, body) -> list[bytes] | None\n\n"
"The frames of `cometmq.protocol.pack`, of an encoded `header` and a sequence of bytes-like parts,\n"
"if it is one.");

static PyObject *pack(PyObject *self, PyObject *const *arguments, Py_ssize_t number) {
    if (!takes("pack", number, 4)) return NULL;
    PyObject *header = arguments[2], *body = arguments[3], *only = NULL;
    uint64_t request_id, code;
    if (!unsigned_of(arguments[0], UINT64_MAX, &request_id)
        || !unsigned_of(arguments[1], UINT16_MAX, &code) || !PyBytes_CheckExact(header)
        || !(PyList_CheckExact(body) || PyTuple_CheckExact(body)))
        Py_RETURN_NONE;
    Py_ssize_t parts = PySequence_Fast_GET_SIZE(body);
    if (parts > 1) Py_RETURN_NONE;
    Py_buffer part = {.buf = NULL};
    PyObject *content = parts ? Py_NewRef(PySequence_Fast_GET_ITEM(body, 0)) : NULL;
    int got = content ? PyObject_GetBuffer(content, &part, PyBUF_SIMPLE) : 0;
    Py_XDECREF(content);
    if (got < 0) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    Py_ssize_t header_size = PyBytes_GET_SIZE(header);
    Py_ssize_t size = PREFIX_BYTES + header_size + part.len;
    if ((parts == 0 && header_size <= UINT32_MAX) || size <= ONE_FRAME_BYTES) {
        PyObject *frame = PyBytes_FromStringAndSize(NULL, size);
        if (frame) {
            uint8_t *at = (uint8_t *)PyBytes_AS_STRING(frame);
            write_low(at, request_id, 8);
            write_low(at + CODE_AT, code, 2);
            write_low(at + HEADER_LENGTH_AT, (uint64_t)header_size, 4);
            memcpy(at + PREFIX_BYTES, PyBytes_AS_STRING(header), (size_t)header_size);
            if (part.len)
                memcpy(at + PREFIX_BYTES + header_size, part.buf, (size_t)part.len);
            if ((only = PyList_New(1))) PyList_SET_ITEM(only, 0, frame);
            else Py_DECREF(frame);
        }
    } else
        only = Py_NewRef(Py_None);
    if (parts == 1) PyBuffer_Release(&part);
    return only;
}

PyDoc_STRVAR(framed_doc,
"framed(frames, below_bytes) -> bytes | None\n\n"
"The ZMTP message of a list of one `bytes` of less than `below_bytes`, its header before it.");

static PyObject *framed(PyObject *self, PyObject *const *arguments, Py_ssize_t number) {
    if (!takes("framed", number, 2)) return NULL;
    PyObject *frames = arguments[0];
    Py_ssize_t below = PyLong_AsSsize_t(arguments[1]);
    if (PyErr_Occurred()) return NULL;
    if (!PyList_CheckExact(frames) || PyList_GET_SIZE(frames) != 1
        || !PyBytes_CheckExact(PyList_GET_ITEM(frames, 0)))
        Py_RETURN_NONE;
    PyObject *frame = PyList_GET_ITEM(frames, 0);
    Py_ssize_t size = PyBytes_GET_SIZE(frame), before = size < 256 ? 2 : LONG_HEADER_BYTES;
    if (size >= below) Py_RETURN_NONE;
    PyObject *message = PyBytes_FromStringAndSize(NULL, before + size);
    if (!message) return NULL;
    uint8_t *at = (uint8_t *)PyBytes_AS_STRING(message);
    *at = before == 2 ? 0 : LONG;
    write_high(at + 1, (uint64_t)size, (int)before - 1);
    memcpy(at + before, PyBytes_AS_STRING(frame), (size_t)size);
    return message;
}

struct bounds { /* Of what one connection may say. */
    Py_ssize_t frame_bytes, frames, message_bytes, most;
};

/* The whole messages that `data` begins with, as a list of lists of bytes, up to the first that is
 * not whole, breaks a bound or is no message; `at` becomes where that begins, `seen` the number of
 * frames before it. */
static PyObject *messages_in(const uint8_t *data, Py_ssize_t size, const struct bounds *bounds,
                             Py_ssize_t *at, Py_ssize_t *seen) {
    PyObject *messages = PyList_New(0), *frames = NULL;
    Py_ssize_t begin = 0, bytes = 0, put = messages ? 0 : -1;
    *at = *seen = 0;
    while (put == 0 && begin < size) {
        int flags = data[begin], header = flags & LONG ? LONG_HEADER_BYTES : 2;
        uint64_t length = 0;
        if (flags > (LONG | MORE) || header > size - begin) break;
        for (int i = 1; i < header; i++) length = length << 8 | data[begin + i];
        begin += header;
        if (length > (uint64_t)(size - begin) || length > (uint64_t)bounds->frame_bytes
            || (bytes += (Py_ssize_t)length) > bounds->message_bytes)
            break;
        if (!frames && !(frames = PyList_New(0))) put = -1;
        else if (PyList_GET_SIZE(frames) == bounds->frames
                 || *seen + PyList_GET_SIZE(frames) == bounds->most)
            break;
        else {
            PyObject *content = PyBytes_FromStringAndSize((const char *)data + begin,
                                                          (Py_ssize_t)length);
            put = content ? PyList_Append(frames, content) : -1;
            Py_XDECREF(content);
        }
        begin += (Py_ssize_t)length;
        if (put == 0 && !(flags & MORE)) {
            put = PyList_Append(messages, frames);
            *at = begin;
            *seen += PyList_GET_SIZE(frames);
            bytes = 0;
            Py_CLEAR(frames);
        }
    }
    Py_XDECREF(frames);
    if (put < 0) Py_CLEAR(messages);
    return messages;
}

PyDoc_STRVAR(receive_doc,
"receive(descriptor, buffer, frame_bytes, frames, message_bytes, most)\n"
"    -> tuple[list[list[bytes]], int, int, int] | None\n\n"
"Receive into `buffer` what is there now, without waiting: the whole ZMTP messages that it begins\n"
"with, within the bounds and of `most` frames in all at most; the number of their frames; where in\n"
"the buffer the rest begins; how many bytes came, 0 at the end, also of a broken connection. None\n"
"if nothing is there now.");

static PyObject *receive(PyObject *self, PyObject *const *arguments, Py_ssize_t number) {
    if (!takes("receive", number, 6)) return NULL;
    int descriptor = (int)PyLong_AsLong(arguments[0]);
    struct bounds bounds = {
        PyLong_AsSsize_t(arguments[2]), PyLong_AsSsize_t(arguments[3]),
        PyLong_AsSsize_t(arguments[4]), PyLong_AsSsize_t(arguments[5]),
    };
    Py_ssize_t size, at, seen;
    Py_buffer buffer;
    if (PyErr_Occurred() || PyObject_GetBuffer(arguments[1], &buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    do {
        Py_BEGIN_ALLOW_THREADS
        size = recv(descriptor, buffer.buf, (size_t)buffer.len, MSG_DONTWAIT);
        Py_END_ALLOW_THREADS
    } while (size < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
    PyObject *result = NULL;
    if (size < 0 && PyErr_Occurred())
        ; /* A signal's handler raised. */
    else if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        result = Py_NewRef(Py_None);
    else {
        size = size < 0 ? 0 : size;
        PyObject *messages = messages_in(buffer.buf, size, &bounds, &at, &seen);
        if (messages) result = Py_BuildValue("Nnnn", messages, seen, at, size);
    }
    PyBuffer_Release(&buffer);
    return result;
}

PyDoc_STRVAR(unfilled_doc,
"unfilled(size) -> bytearray\n\n"
"One of so many bytes, whatever they are: for who fills all of it before anybody looks.");

static PyObject *unfilled(PyObject *self, PyObject *size) {
    Py_ssize_t bytes = PyLong_AsSsize_t(size);
    if (bytes < 0 && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "negative count");
    return PyErr_Occurred() ? NULL : PyByteArray_FromStringAndSize(NULL, bytes);
}

/* --- batches ----------------------------------------------------------------------------------- */

struct plan { /* Where the parts of a batch are. */
    uint32_t attributes, count;
    uint64_t records_bytes, topic_length, topic_end, table_at, records_at;
};

static int is_stamped(const uint8_t *data) {
    static const uint8_t unstamped[PRODUCER_CRC_AT - STAMP_AT];
    return read_u32(data + BROKER_CRC_AT) || memcmp(data + STAMP_AT, unstamped, sizeof unstamped);
}

/* Whether all rules hold but those of the CRCs, for a batch as nearly all are. */
static int is_plain(const uint8_t *data, uint64_t there, struct plan *plan) {
    if (there < LENGTH_MIN || memcmp(data, MAGIC, 4) || read_u32(data + LENGTH_AT) != there
        || data[FLAGS_AT])
        return 0;
    plan->attributes = read_u16(data + ATTRIBUTES_AT);
    plan->count = read_u32(data + COUNT_AT);
    plan->records_bytes = read_u32(data + SIZE_AT);
    plan->topic_length = data[TOPIC_LENGTH_AT];
    if ((plan->attributes && plan->attributes != HAS_PRODUCER) || !plan->count
        || !plan->topic_length)
        return 0;
    plan->topic_end = TOPIC_AT + plan->topic_length;
    plan->table_at = plan->topic_end + (plan->attributes ? PRODUCER_BYTES : 0);
    plan->records_at = plan->table_at + 8 * (uint64_t)plan->count;
    if (plan->records_at + ARRAY_BYTES > there || plan->records_bytes != there - plan->records_at)
        return 0;
    uint64_t total = ARRAY_BYTES;
    for (uint32_t i = 0; i < plan->count; i++)
        total += read_u32(data + plan->table_at + 4 * (uint64_t)i);
    uint8_t array_header[ARRAY_BYTES] = {ARRAY32};
    write_high(array_header + 1, plan->count, 4);
    return total == plan->records_bytes
           && !memcmp(data + plan->records_at, array_header, ARRAY_BYTES);
}

static PyObject *lengths_of(const uint8_t *column, uint32_t count) {
    PyObject *lengths = PyTuple_New(count);
    for (uint32_t i = 0; lengths && i < count; i++) {
        PyObject *length = PyLong_FromUnsignedLong(read_u32(column + 4 * (uint64_t)i));
        if (!length) Py_CLEAR(lengths);
        else PyTuple_SET_ITEM(lengths, i, length);
    }
    return lengths;
}

static PyObject *producer_of(const uint8_t *section) {
    return Py_BuildValue("KKK", (unsigned long long)read_u64(section),
                         (unsigned long long)read_u64(section + 8),
                         (unsigned long long)read_u64(section + 16));
}

static PyObject *batch_of(PyObject *type, PyObject *piece, const uint8_t *data,
                          const struct plan *plan) {
    PyObject *values[BATCH_FIELDS], *batch = NULL;
    int at = 0;
#define PUT(value) if (!(values[at++] = (value))) goto failed
    PUT(Py_NewRef(piece));
    for (int i = 0; i <= LENGTH_AT; i += 4) PUT(PyLong_FromUnsignedLong(read_u32(data + i)));
    const uint8_t *field = data + STAMP_AT;
    for (int i = 0; i < STAMP_FIELDS; field += stamp_fields[i++].bytes) {
        uint64_t value = read_low(field, stamp_fields[i].bytes);
        PUT(i == STORE_TIME_FIELD ? PyLong_FromLongLong((int64_t)value)
                                  : PyLong_FromUnsignedLongLong(value));
    }
    PUT(PyLong_FromUnsignedLong(read_u32(data + PRODUCER_CRC_AT)));
    PUT(PyLong_FromUnsignedLong(plan->attributes));
    PUT(PyLong_FromUnsignedLong(read_u16(data + QUEUE_CLAIM_AT)));
    PUT(PyLong_FromUnsignedLong(plan->count));
    PUT(PyLong_FromUnsignedLongLong(plan->records_bytes));
    PUT(PyLong_FromLongLong((int64_t)read_u64(data + FIRST_BORN_AT)));
    PUT(PyLong_FromUnsignedLong(read_u32(data + BORN_SPAN_AT)));
    PUT(PyLong_FromUnsignedLongLong(plan->topic_length));
    PUT(PyUnicode_DecodeUTF8((const char *)data + TOPIC_AT, (Py_ssize_t)plan->topic_length, NULL));
    PUT(lengths_of(data + plan->table_at, plan->count));
    PUT(PyLong_FromUnsignedLongLong(plan->table_at));
    PUT(PyLong_FromUnsignedLongLong(plan->records_at));
    PUT(plan->attributes ? producer_of(data + plan->topic_end) : Py_NewRef(Py_None));
#undef PUT
    batch = PyObject_Vectorcall(type, values, (size_t)at, NULL);
failed:
    while (at) Py_XDECREF(values[--at]);
    return batch;
}

/* The batch that is exactly `piece`, proven (see `prove`) or only parsed; None if it isn't plain. */
static PyObject *plain_batch(PyObject *const *arguments, int proven) {
    uint64_t limit;
    if (!PyMemoryView_Check(arguments[0]) || !unsigned_of(arguments[1], BATCH_BYTES_MAX, &limit))
        Py_RETURN_NONE;
    Py_buffer buffer; /* Of our own, so that nobody can release it meanwhile. */
    if (PyObject_GetBuffer(arguments[0], &buffer, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *data = buffer.buf;
    struct plan plan;
    uint32_t crc;
    PyObject *batch = NULL;
    int plain = (uint64_t)buffer.len <= limit && is_plain(data, (uint64_t)buffer.len, &plan);
    if (plain && proven) {
        if (!crc_of(data + SEALED_AT, buffer.len - SEALED_AT, 0, &crc)) goto done;
        plain = crc == read_u32(data + PRODUCER_CRC_AT) && !is_stamped(data);
    }
    batch = plain ? batch_of(arguments[2], arguments[0], data, &plan) : Py_NewRef(Py_None);
done:
    PyBuffer_Release(&buffer);
    if (!batch && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return batch;
}

PyDoc_STRVAR(parse_doc,
"parse(piece, limit, Batch) -> Batch | None\n\n"
"The plain case of `parse` of `cometmq.batch`: messages as nearly all are, exactly `piece`.");

static PyObject *parse(PyObject *self, PyObject *const *arguments, Py_ssize_t number) {
    if (!takes("parse", number, 3)) return NULL;
    return plain_batch(arguments, 0);
}

PyDoc_STRVAR(prove_doc,
"prove(piece, limit, Batch) -> Batch | None\n\n"
"`parse`, `verify_unstamped` and `verify_producer` of `cometmq.batch` at once, for a batch of\n"
"messages as nearly all are that is exactly `piece`: None unless all of it is right.");

static PyObject *prove(PyObject *self, PyObject *const *arguments, Py_ssize_t number) {
    if (!takes("prove", number, 3)) return NULL;
    return plain_batch(arguments, 1);
}

PyDoc_STRVAR(stamped_doc,
"stamped(batch, size, log_id_seed, position, epoch, synced_before, base_offset, store_time,\n"
"    incarnation, queue, origin_kind, flags, origin_position) -> bytearray\n\n"
"The same as `stamped` of `cometmq.batch`, whatever the batch, for ints of at least 0.");

static PyObject *stamped(PyObject *self, PyObject *const *arguments, Py_ssize_t number) {
    if (!takes("stamped", number, 3 + STAMP_FIELDS)) return NULL;
    PyObject *const *stamp = arguments + 3;
    uint64_t size, seed, value;
    uint8_t fields[PRODUCER_CRC_AT - STAMP_AT];
    if (!unsigned_of(arguments[1], BATCH_BYTES_MAX, &size) || size < SEALED_AT
        || !unsigned_of(arguments[2], UINT32_MAX, &seed))
        return PyErr_Format(struct_error, "no such size or seed");
    uint8_t *field = fields;
    for (int i = 0; i < STAMP_FIELDS; i++) {
        int bytes = stamp_fields[i].bytes;
        uint64_t most = bytes == 8 ? INT64_MAX : ((uint64_t)1 << 8 * bytes) - 1;
        if (!unsigned_of(stamp[i], most, &value))
            return PyErr_Format(struct_error, "%s can't be %R", stamp_fields[i].name, stamp[i]);
        write_low(field, value, bytes);
        field += bytes;
    }
    PyObject *view = PyObject_GetAttr(arguments[0], name_view), *head = NULL;
    if (!view) return NULL;
    Py_buffer buffer;
    if (PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE) == 0) {
        if ((uint64_t)buffer.len >= size)
            head = PyByteArray_FromStringAndSize(buffer.buf, (Py_ssize_t)size);
        else
            PyErr_Format(PyExc_ValueError, "a batch of less than %llu bytes",
                         (unsigned long long)size);
        PyBuffer_Release(&buffer);
    }
    Py_DECREF(view);
    if (!head) return NULL;
    uint8_t *data = (uint8_t *)PyByteArray_AS_STRING(head);
    memcpy(data + STAMP_AT, fields, sizeof fields);
    uint32_t crc;
    if (!crc_of(data + LENGTH_AT, SEALED_AT - LENGTH_AT, (uint32_t)seed, &crc)) goto failed;
    write_low(data + BROKER_CRC_AT, crc, 4);
    PyObject *known = PyLong_FromUnsignedLong(crc);
    if (!known) goto failed;
    int told = PyObject_SetAttr(arguments[0], name_broker_crc, known);
    Py_DECREF(known);
    for (int i = 0; i < STAMP_FIELDS && told == 0; i++)
        told = PyObject_SetAttr(arguments[0], stamp_names[i], stamp[i]);
    if (told == 0) return head;
failed:
    Py_DECREF(head);
    return NULL;
}

/* msgpack, as msgspec writes it: always the shortest form. */
static int int_bytes(uint64_t value) {
    return value < 0x80 ? 1 : value <= 0xFF ? 2 : value <= 0xFFFF ? 3 : value <= UINT32_MAX ? 5 : 9;
}

static uint8_t *put_int(uint8_t *at, uint64_t value) {
    int size = int_bytes(value);
    static const uint8_t kinds[] = {0, 0, 0xCC, 0xCD, 0, 0xCE, 0, 0, 0, 0xCF};
    if (size == 1) *at = (uint8_t)value;
    else {
        *at = kinds[size];
        write_high(at + 1, value, size - 1);
    }
    return at + size;
}

static int header_bytes(uint64_t size) { return size < 256 ? 2 : size < 65536 ? 3 : 5; }

/* `kind` is the one of a size of one byte; two and four bytes have the next ones. */
static uint8_t *put_bytes(uint8_t *at, int kind, const char *bytes, uint64_t size) {
    int header = header_bytes(size);
    *at = (uint8_t)(kind + (header == 3 ? 1 : header == 5 ? 2 : 0));
    write_high(at + 1, size, header - 1);
    memcpy(at + header, bytes, size);
    return at + header + size;
}

static uint64_t text_bytes(uint64_t size) { return (size < 32 ? 1 : header_bytes(size)) + size; }

static uint8_t *put_text(uint8_t *at, const char *text, uint64_t size) {
    if (size >= 32) return put_bytes(at, 0xD9, text, size);
    *at = (uint8_t)(0xA0 | size);
    memcpy(at + 1, text, size);
    return at + 1 + size;
}

struct record { /* What all records of a batch have in common. */
    const char *tag;
    Py_ssize_t tag_size;
    uint32_t tag_hash;
};

/* From where on and up to where records were born at which time; 0 if that is nothing for us. */
static int birth_at(PyObject *births, Py_ssize_t i, Py_ssize_t count, Py_ssize_t *place,
                    Py_ssize_t *end, uint64_t *born) {
    uint64_t from, to = (uint64_t)count;
    PyObject *birth = PyTuple_GET_ITEM(births, i);
    if (!PyTuple_CheckExact(birth) || PyTuple_GET_SIZE(birth) != 2
        || !unsigned_of(PyTuple_GET_ITEM(birth, 0), (uint64_t)count, &from)
        || !unsigned_of(PyTuple_GET_ITEM(birth, 1), INT64_MAX, born))
        return 0;
    if (i + 1 < PyTuple_GET_SIZE(births)) {
        PyObject *next = PyTuple_GET_ITEM(births, i + 1);
        if (!PyTuple_CheckExact(next) || PyTuple_GET_SIZE(next) != 2
            || !unsigned_of(PyTuple_GET_ITEM(next, 0), (uint64_t)count, &to))
            return 0;
    }
    *place = (Py_ssize_t)from;
    *end = (Py_ssize_t)to;
    return from <= to;
}

/* The size of all records, with each rule looked at; 0 if they are nothing for us. */
static uint64_t records_bytes(PyObject *births, PyObject *bodies, const struct record *record) {
    uint64_t total = ARRAY_BYTES, born;
    /* An array of five: time, body, tag, no keys, no properties. */
    uint64_t around = 3 + text_bytes((uint64_t)record->tag_size);
    Py_ssize_t count = PyTuple_GET_SIZE(bodies), reached = 0, place, end;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(births); i++) {
        if (!birth_at(births, i, count, &place, &end, &born) || place != reached) return 0;
        for (; place < end; place++) {
            PyObject *body = PyTuple_GET_ITEM(bodies, place);
            if (!PyBytes_CheckExact(body)) return 0;
            uint64_t size = (uint64_t)PyBytes_GET_SIZE(body);
            total += around + int_bytes(born) + header_bytes(size) + size;
            if (total > BATCH_BYTES_MAX) return 0;
        }
        reached = end;
    }
    return reached == count ? total : 0;
}

static void write_records(uint8_t *data, uint64_t table_at, PyObject *births, PyObject *bodies,
                          const struct record *record) {
    Py_ssize_t count = PyTuple_GET_SIZE(bodies), place, end;
    uint8_t *lengths = data + table_at, *hashes = lengths + 4 * count, *at = hashes + 4 * count;
    uint64_t born = 0;
    *at = ARRAY32;
    write_high(at + 1, (uint64_t)count, 4);
    at += ARRAY_BYTES;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(births); i++) {
        birth_at(births, i, count, &place, &end, &born);
        for (; place < end; place++) {
            PyObject *body = PyTuple_GET_ITEM(bodies, place);
            uint8_t *begin = at;
            *at++ = 0x95;
            at = put_int(at, born);
            at = put_bytes(at, 0xC4, PyBytes_AS_STRING(body), (uint64_t)PyBytes_GET_SIZE(body));
            at = put_text(at, record->tag, (uint64_t)record->tag_size);
            *at++ = 0x90;
            *at++ = 0x80;
            write_low(lengths + 4 * place, (uint64_t)(at - begin), 4);
            write_low(hashes + 4 * place, record->tag_hash, 4);
        }
    }
}

/* As `sealed`, of tuples: nobody can change them meanwhile. */
static PyObject *sealed_of(PyObject *name, uint64_t queue, PyObject *births, PyObject *bodies,
                           PyObject *producer, const struct record *record) {
    uint64_t numbers[3], first_born, last_born, total;
    Py_ssize_t count = PyTuple_GET_SIZE(bodies), last = PyTuple_GET_SIZE(births) - 1, place, end;
    Py_ssize_t name_size = PyBytes_GET_SIZE(name);
    int numbered = producer != Py_None;
    for (int i = 0; numbered && i < 3; i++)
        if (!unsigned_of(PyTuple_GET_ITEM(producer, i), UINT64_MAX, &numbers[i])) Py_RETURN_NONE;
    if (count < 1 || last < 0 || !(total = records_bytes(births, bodies, record))
        || !birth_at(births, 0, count, &place, &end, &first_born)
        || !birth_at(births, last, count, &place, &end, &last_born))
        Py_RETURN_NONE;
    uint64_t table_at = TOPIC_AT + (uint64_t)name_size + (numbered ? PRODUCER_BYTES : 0);
    uint64_t length = table_at + 8 * (uint64_t)count + total;
    if (length > BATCH_BYTES_MAX) Py_RETURN_NONE;
    PyObject *batch = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (!batch) return NULL;
    uint8_t *data = (uint8_t *)PyByteArray_AS_STRING(batch), *at = data + TOPIC_AT;
    uint64_t span = last_born > first_born ? last_born - first_born : 0;
    memset(data, 0, SEALED_AT);
    memcpy(data, MAGIC, 4);
    write_low(data + LENGTH_AT, length, 4);
    write_low(data + ATTRIBUTES_AT, numbered ? HAS_PRODUCER : 0, 2);
    write_low(data + QUEUE_CLAIM_AT, queue, 2);
    write_low(data + COUNT_AT, (uint64_t)count, 4);
    write_low(data + SIZE_AT, total, 4);
    write_low(data + FIRST_BORN_AT, first_born, 8);
    write_low(data + BORN_SPAN_AT, span < UINT32_MAX ? span : UINT32_MAX, 4);
    data[TOPIC_LENGTH_AT] = (uint8_t)name_size;
    memcpy(at, PyBytes_AS_STRING(name), (size_t)name_size);
    at += name_size;
    for (int i = 0; numbered && i < 3; i++, at += 8) write_low(at, numbers[i], 8);
    write_records(data, table_at, births, bodies, record);
    uint32_t crc;
    if (!crc_of(data + SEALED_AT, (Py_ssize_t)length - SEALED_AT, 0, &crc)) {
        Py_DECREF(batch);
        return NULL;
    }
    write_low(data + PRODUCER_CRC_AT, crc, 4);
    return batch;
}

PyDoc_STRVAR(sealed_doc,
"sealed(name, queue, births, bodies, producer, tag) -> bytearray | None\n\n"
"What `encode_bodies` of `cometmq.batch` makes of a topic's `name` in UTF-8. `births` and `bodies`\n"
"are sequences as there, `producer` may be None; each record has the same `tag`.");

static PyObject *sealed(PyObject *self, PyObject *const *arguments, Py_ssize_t number) {
    if (!takes("sealed", number, 6)) return NULL;
    PyObject *name = arguments[0], *producer = arguments[4], *tag = arguments[5];
    uint64_t queue;
    if (!PyBytes_CheckExact(name) || PyBytes_GET_SIZE(name) < 1 || PyBytes_GET_SIZE(name) > 255
        || !unsigned_of(arguments[1], UINT16_MAX, &queue) || !PyUnicode_CheckExact(tag)
        || (producer != Py_None
            && (!PyTuple_CheckExact(producer) || PyTuple_GET_SIZE(producer) != 3)))
        Py_RETURN_NONE;
    struct record record = {NULL, 0, 0};
    if (!(record.tag = PyUnicode_AsUTF8AndSize(tag, &record.tag_size))) {
        PyErr_Clear(); /* A lone surrogate: who encodes it says so. */
        Py_RETURN_NONE;
    }
    if (record.tag_size
        && !crc_of((const uint8_t *)record.tag, record.tag_size, 0, &record.tag_hash))
        return NULL;
    PyObject *births = PySequence_Tuple(arguments[2]), *batch = NULL;
    PyObject *bodies = births ? PySequence_Tuple(arguments[3]) : NULL;
    if (bodies) batch = sealed_of(name, queue, births, bodies, producer, &record);
    Py_XDECREF(births);
    Py_XDECREF(bodies);
    return batch;
}

/* --- the module -------------------------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"unpack", unpack, METH_O, unpack_doc},
    {"pack", (PyCFunction)(void (*)(void))pack, METH_FASTCALL, pack_doc},
    {"framed", (PyCFunction)(void (*)(void))framed, METH_FASTCALL, framed_doc},
    {"receive", (PyCFunction)(void (*)(void))receive, METH_FASTCALL, receive_doc},
    {"unfilled", unfilled, METH_O, unfilled_doc},
    {"parse", (PyCFunction)(void (*)(void))parse, METH_FASTCALL, parse_doc},
    {"prove", (PyCFunction)(void (*)(void))prove, METH_FASTCALL, prove_doc},
    {"stamped", (PyCFunction)(void (*)(void))stamped, METH_FASTCALL, stamped_doc},
    {"sealed", (PyCFunction)(void (*)(void))sealed, METH_FASTCALL, sealed_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "The plain cases, in C.", -1, functions, NULL, NULL, NULL, NULL,
};

static PyObject *attribute_of(const char *module, const char *name) {
    PyObject *imported = PyImport_ImportModule(module), *found = NULL;
    if (imported) found = PyObject_GetAttrString(imported, name);
    Py_XDECREF(imported);
    return found;
}

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (!module) return NULL;
    module_names = PyModule_GetDict(module);
    for (int i = 0; i < STAMP_FIELDS; i++)
        if (!(stamp_names[i] = PyUnicode_InternFromString(stamp_fields[i].name))) goto failed;
    if (!(name_crc32c = PyUnicode_InternFromString("crc32c"))
        || !(name_view = PyUnicode_InternFromString("view"))
        || !(name_broker_crc = PyUnicode_InternFromString("broker_crc"))
        || !(struct_error = attribute_of("struct", "error"))
        || PyModule_AddObject(module, "crc32c", attribute_of("crc32c", "crc32c")) < 0)
        goto failed;
    if (PyModule_AddObject(module, "SOURCE_CRC", PyLong_FromUnsignedLong(SOURCE_CRC)) < 0)
        goto failed;
    return module;
failed:
    Py_DECREF(module);
    return NULL;
}
