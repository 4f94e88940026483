package nbd

import "github.com/pojntfx/go-nbd/pkg/protocol"

// Magic numbers.
const (
	magicServer      = protocol.NEGOTIATION_MAGIC_OLDSTYLE
	magicOption      = protocol.NEGOTIATION_MAGIC_OPTION
	magicOptionReply = protocol.NEGOTIATION_MAGIC_REPLY
	magicRequest     = protocol.TRANSMISSION_MAGIC_REQUEST
	magicSimpleReply = protocol.TRANSMISSION_MAGIC_REPLY
	magicStructured  = uint32(0x668e33ef)

	magicExtendedRequest = uint32(0x21e41c71)
	magicExtendedReply   = uint32(0x6e8a278c)

	greetingSize      = 18 // bytes: two magics and the handshake flags
	optionHeaderSize  = 16 // bytes: magic, option, length
	replyHeaderSize   = 20 // bytes: magic, option, type, length
	requestHeaderSize = 28 // bytes
	simpleReplySize   = 16 // bytes
	chunkHeaderSize   = 20 // bytes: of a structured reply chunk

	extendedRequestSize = 32 // bytes
	extendedReplySize   = 32 // bytes

	zeroPadding = 124
)

// Handshake flags, which the server sends, and the client flags that answer
// them bit for bit.
const (
	flagFixedNewstyle = protocol.NEGOTIATION_HANDSHAKE_FLAG_FIXED_NEWSTYLE
	flagNoZeroes      = uint16(1 << 1)
	handshakeFlags    = flagFixedNewstyle | flagNoZeroes
)

// Options.
const (
	optExportName      = uint32(1)
	optAbort           = protocol.NEGOTIATION_ID_OPTION_ABORT
	optList            = protocol.NEGOTIATION_ID_OPTION_LIST
	optStartTLS        = uint32(5)
	optInfo            = protocol.NEGOTIATION_ID_OPTION_INFO
	optGo              = protocol.NEGOTIATION_ID_OPTION_GO
	optStructuredReply = uint32(8)
	optListMeta        = uint32(9)
	optSetMeta         = uint32(10)
	optExtendedHeaders = uint32(11)
)

// Option reply types. Those with bit 31 are errors.
const (
	repAck              = protocol.NEGOTIATION_TYPE_REPLY_ACK
	repServer           = protocol.NEGOTIATION_TYPE_REPLY_SERVER
	repMetaContext      = uint32(4)
	repInfo             = protocol.NEGOTIATION_TYPE_REPLY_INFO
	repError            = uint32(1 << 31)
	repErrUnsupported   = protocol.NEGOTIATION_TYPE_REPLY_ERR_UNSUPPORTED
	repErrPolicy        = repError | 2
	repErrInvalid       = repError | 3
	repErrTLSReqd       = repError | 5
	repErrUnknown       = protocol.NEGOTIATION_TYPE_REPLY_ERR_UNKNOWN
	repErrShutdown      = repError | 7
	repErrBlockSizeReqd = repError | 8
	repErrTooBig        = repError | 9
	repErrExtHeaderReqd = repError | 10
)

// Information types of INFO and GO.
const (
	infoExport      = protocol.NEGOTIATION_TYPE_INFO_EXPORT
	infoName        = protocol.NEGOTIATION_TYPE_INFO_NAME
	infoDescription = protocol.NEGOTIATION_TYPE_INFO_DESCRIPTION
	infoBlockSize   = protocol.NEGOTIATION_TYPE_INFO_BLOCKSIZE
)

// Transmission flags of an export.
const (
	flagHasFlags        = protocol.NEGOTIATION_REPLY_FLAGS_HAS_FLAGS
	flagReadOnly        = uint16(1 << 1)
	flagSendFlush       = uint16(1 << 2)
	flagSendFUA         = uint16(1 << 3)
	flagRotational      = uint16(1 << 4)
	flagSendTrim        = uint16(1 << 5)
	flagSendWriteZeroes = uint16(1 << 6)
	flagSendDF          = uint16(1 << 7)
	flagCanMultiConn    = protocol.NEGOTIATION_REPLY_FLAGS_CAN_MULTI_CONN
	flagSendCache       = uint16(1 << 10)
	flagSendFastZero    = uint16(1 << 11)
	flagStatusPayload   = uint16(1 << 12) // BLOCK_STATUS may have a payload
)

// Commands.
const (
	cmdRead        = protocol.TRANSMISSION_TYPE_REQUEST_READ
	cmdWrite       = protocol.TRANSMISSION_TYPE_REQUEST_WRITE
	cmdDisconnect  = protocol.TRANSMISSION_TYPE_REQUEST_DISC
	cmdFlush       = uint16(3)
	cmdTrim        = uint16(4)
	cmdCache       = uint16(5)
	cmdWriteZeroes = uint16(6)
	cmdBlockStatus = uint16(7)
)

// Command flags.
const (
	cmdFlagFUA        = uint16(1 << 0)
	cmdFlagNoHole     = uint16(1 << 1)
	cmdFlagDF         = uint16(1 << 2)
	cmdFlagReqOne     = uint16(1 << 3)
	cmdFlagFastZero   = uint16(1 << 4)
	cmdFlagPayloadLen = uint16(1 << 5)
)

// Chunks of a structured reply.
const (
	chunkFlagDone       = uint16(1 << 0)
	chunkNone           = uint16(0)
	chunkOffsetData     = uint16(1)
	chunkOffsetHole     = uint16(2)
	chunkBlockStatus    = uint16(5)
	chunkBlockStatusExt = uint16(6)
	chunkError          = uint16(1<<15 | 1)
)

// The only metadata context there is. Its number is any but 0.
const (
	contextName = "base:allocation"
	contextID   = uint32(1)
)

// maximumText is the longest string of the protocol, in bytes: of an error text
// or an export's description ("Values", strings).
const maximumText = 4096
